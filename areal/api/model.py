"""Contract of a native model family: arguments, forward on packed tokens, and a bridge to Hugging Face checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from areal.api.recurrence import Recurrence


class AttentionBackend(Protocol):
    """Where keys and values live and how queries meet them. Layers call it; they never see masks or caches.

    Training passes one that attends inside each packed sequence; the embedded engine passes one that owns a KV cache.
    """

    def __call__(  # noqa: PLR0913 - one keyword per feature of attention
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
        selected: bool = False,
        keep: bool = False,
    ) -> Tensor:
        """Causal attention of `query` over everything its sequence holds so far, the given keys included.

        query: [T, num_heads, head_dim]; key: [T, num_kv_heads, head_dim]; value: [T, num_kv_heads, value_dim]; rotary
        embedding already applied. window: a token sees itself and window - 1 tokens before it. chunk: a token sees only
        tokens of its own chunk, of this many positions from the start of the sequence on. softcap: scores become
        softcap * tanh(scores / softcap), before masks and biases. sinks: [num_heads] extra logits that take probability
        mass and give no value. alibi: [num_heads] constant slopes; alibi * (key position - query position) is added to
        the scaled scores. selected: a token sees only what `SelectionBackend.select` chose for this layer, or else for
        the last one before it (ModelError without any). keep: later layers attend to these keys and values as well;
        they call with the number of this layer, and with None for both. Returns [T, num_heads, value_dim].
        A backend that lacks an asked-for feature raises ModelError; it never ignores one.
        """
        ...


class SelectionBackend(Protocol):
    """Chooses the tokens that attention is restricted to. The same object is the `AttentionBackend` of the forward,
    which then gets `selected`."""

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """Choose for each token the `count` tokens of largest score among itself and those before it in its document;
        all, where there are fewer.

        query: [T, H, D]; key: [T, D]; weight: [T, H]; rotary embedding already applied. The score of a query and a key
        is the sum over heads of weight_h * relu(query_h key), at least in float32; of equal ones the earlier token is
        taken. No gradient flows. A layer selects once per forward, before it attends.
        """
        ...


class StateBackend(Protocol):
    """Where layers whose memory has a fixed size keep it. Layers call it; they know neither documents nor caches.

    The same object is the `AttentionBackend` of the forward. Nothing of a document reaches another one: its first token
    finds a state of zeros, and zeros before it. What cannot carry a state raises ModelError; it never ignores one.
    """

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Causal convolution of each channel over the inputs of the same document.

        inputs: [T, C]; weight: [C, K], its last column for a token itself; bias: [C]. Returns [T, C] in the dtype of
        the weight: y_t = sum over j < K of weight_j * x_(t - K + 1 + j), summed at least in float32, plus the bias.
        A layer convolves once per forward.
        """
        ...

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """Return the outputs [T, H, d_v] of a linear recurrence within each document, at least in float32.

        A layer scans once per forward.
        """
        ...


class ExpertRoutes(Protocol):
    """What is done in one forward about the experts that routers of a mixture choose."""

    def settle(self, number: int, chosen: Tensor) -> Tensor:
        """Return the experts that router `number` of the model uses, int64 [T, K], in place of those that it would
        choose."""
        ...


class CausalModel(Protocol):
    """The part of a decoder that engines use; every family's model is an nn.Module of this shape."""

    args: BaseModelArgs

    @property
    def length_limit(self) -> int | None:
        """A sequence that grows beyond this many tokens is computed anew from its first token on, so that nothing of a
        shorter one can be kept or shared; None, in nearly all families, if that never happens."""
        ...

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend | None = None,
    ) -> Tensor:
        """Logits [T, vocab_size] of packed tokens: tokens int64 [T], positions int64 [T], cu_seqlens int32 [S + 1].

        attention: None means packed causal attention over cu_seqlens; prompts that several samples share are trained
        on through a backend of their own. Where layers have states, it is a `StateBackend` as well. tree_attn_meta is
        reserved for deeper trees and must be None for now (ModelError otherwise).
        """
        ...

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend | None = None,
    ) -> Tensor:
        """Final-norm output [T, hidden_size]: `forward` is `project(hidden(...))`."""
        ...

    def project(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of hidden states, [..., hidden_size] -> [..., vocab_size]; includes logit scaling and
        softcap."""
        ...


@dataclass(kw_only=True)
class BaseModelArgs(ABC):
    """What every family's arguments share; each family adds its own fields."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool

    @classmethod
    @abstractmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> Self:
        """Build from the content of a config.json (or `PretrainedConfig.to_dict()`).

        Raises ModelError for a field whose value the family does not implement: a variant never loads silently wrong.
        """

    @abstractmethod
    def to_hf_config(self) -> dict[str, Any]:
        """Content of a config.json that `transformers` loads as the same model."""


class StateDictAdapter(ABC):
    """Translates parameter names and layouts between ours and the *on-disk* Hugging Face checkpoint."""

    args: BaseModelArgs

    @abstractmethod
    def __init__(self, args: BaseModelArgs) -> None:
        """Keep `args`, the arguments of the model whose tensors are translated."""

    @abstractmethod
    def from_hf(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On-disk names to ours; raises ModelError naming keys that are missing or left over (beyond the declared skip
        list)."""

    @abstractmethod
    def to_hf(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Ours to on-disk names; exact inverse of `from_hf`."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A family, as the registry hands it out: `areal.models.registry` maps a HF model_type to
    "areal.models.<family>:SPEC"."""

    name: str
    """Family folder, e.g. "qwen3"."""
    model_class: type
    """nn.Module, constructed as model_class(args); implements CausalModel."""
    args_class: type[BaseModelArgs]
    state_dict_adapter: type[StateDictAdapter]
    parallelize: Callable[..., Any]
    """`parallelize(model, plan)`: applies sharding in place; on one device it returns the model unchanged."""
    model_types: frozenset[str]
    """HF `model_type` values this family loads."""
