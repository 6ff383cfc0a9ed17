"""Self-attention: the layer that projects, and the backend that attends inside each packed sequence.

The layer hands rotated queries, keys and values to an `AttentionBackend` and knows no masks or caches. The backend
here, `PackedAttention`, uses only PyTorch operations that run on every device and in the backward pass, or a kernel for
runs of any lengths where the device has one (`areal.models.blocks.varlen_attention`).
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from areal.api import ModelError
from areal.models.blocks.alibi import alibi_slopes
from areal.models.blocks.differential import DifferentialHeads
from areal.models.blocks.linear import Linear
from areal.models.blocks.padded_attention import (
    MAX_PADDING_RATIO,
    AttentionOptions,
    Rectangle,
    Visibility,
    attend,
    make_rectangle,
    restoring_order,
)
from areal.models.blocks.rotary import rotate, scale_query
from areal.models.blocks.selection import Selections, choose
from areal.models.blocks.shared_keys import KeptKeys
from areal.models.blocks.varlen_attention import KeyRuns, attend_runs, find_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.api import AttentionBackend, BaseModelArgs
    from areal.models.blocks.rotary import Rotation


class SelfAttention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245): query heads share `num_kv_heads` keys and values in equal groups.

    Parameters: q_proj, k_proj, v_proj, o_proj, and what is asked for of q_norm, k_norm, v_norm, sinks [num_heads],
    gate_proj, gate_bias [num_heads], output_norm, differential.
    """

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        qkv_bias: bool = False,
        key_bias: bool | None = None,
        value_bias: bool | None = None,
        output_bias: bool = False,
        scale: float | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        value_norm: nn.Module | None = None,
        keys_as_values: bool = False,
        shares_keys: bool = False,
        full_width_norms: bool = False,
        norm_after_rotary: bool = False,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        clip: float | None = None,
        value_scale: float = 1.0,
        gate: Literal["none", "elementwise", "headwise"] = "none",
        gate_function: Literal["sigmoid", "softplus"] = "sigmoid",
        gate_bias: bool = False,
        output_norm: nn.Module | None = None,
        alibi: float | None = None,
        differential_eps: float | None = None,
    ) -> None:
        """Sizes that are None: those of args; value_dim: head_dim. key_bias, value_bias: None means qkv_bias.

        scale: factor on query-key products, head_dim**-0.5 if None. query_norm, key_norm: of each head, before the
        rotation; full_width_norms: of all heads together; norm_after_rotary: after the rotation. window, chunk,
        softcap, sinks: see `AttentionBackend`. keys_as_values: values are what k_proj gives, before norm and rotation.
        shares_keys: the layer attends to the keys and values of an earlier one, which `shared_keys.connect` finds; the
        keywords about them say what they are there. clip: queries, keys and values are clamped to [-clip, clip], after
        norms that come before the rotation. value_norm: of the values of each head, before the factor value_scale.
        gate: the attended values times gate_function(gate_proj(hidden)), one gate per element or per head; gate_bias:
        with a number per head added inside. output_norm: of the attended values of all heads together. alibi: factor
        on the position biases of `alibi_slopes`. differential_eps: of the norm of `DifferentialHeads`.
        """
        super().__init__()
        if window is not None and window < 1:
            raise ModelError(f"a window of {window} tokens leaves none to attend to, expected at least 1")
        self.layer = layer
        self.num_heads = args.num_heads if num_heads is None else num_heads
        num_kv_heads = args.num_kv_heads if num_kv_heads is None else num_kv_heads
        self.num_kv_heads, self.shares_keys, self.keys_of, self.is_shared = num_kv_heads, shares_keys, layer, False
        self.head_dim = args.head_dim if head_dim is None else head_dim
        self.value_dim = self.head_dim if value_dim is None else value_dim
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.full_width_norms, self.norm_after_rotary = full_width_norms, norm_after_rotary
        self.window, self.chunk, self.softcap, self.clip, self.alibi = window, chunk, softcap, clip, alibi
        self.value_scale, hidden_size, attended_size = value_scale, args.hidden_size, self.num_heads * self.value_dim
        key_bias, value_bias = (qkv_bias if each is None else each for each in (key_bias, value_bias))
        self.q_proj = Linear(hidden_size, self.num_heads * self.head_dim, bias=qkv_bias)
        keys, values = num_kv_heads * self.head_dim, num_kv_heads * self.value_dim
        self.k_proj = None if shares_keys else Linear(hidden_size, keys, bias=key_bias)
        self.v_proj = None if shares_keys or keys_as_values else Linear(hidden_size, values, bias=value_bias)
        self.o_proj = Linear(attended_size, hidden_size, bias=output_bias)
        self.q_norm = query_norm
        self.k_norm, self.v_norm = (None, None) if shares_keys else (key_norm, value_norm)
        self.sinks = nn.Parameter(torch.zeros(self.num_heads)) if sinks else None
        self.gate_proj: nn.Linear | None = None
        if gate != "none":
            gates = attended_size if gate == "elementwise" else self.num_heads
            self.gate_proj = Linear(hidden_size, gates, bias=False)
        self.gate_bias = nn.Parameter(torch.zeros(self.num_heads)) if gate_bias else None
        self._gate, self._gate_function = gate, _GATES[gate_function]
        self.output_norm = output_norm
        self.differential: DifferentialHeads | None = None
        if differential_eps is not None:
            if num_kv_heads % 2 or gate != "none" or output_norm is not None or sinks:
                raise ModelError(f"differential attention with {num_kv_heads} key-value heads, gate {gate!r}; {_PAIRS}")
            self.differential = DifferentialHeads(layer, self.value_dim, differential_eps)

    def forward(self, hidden: Tensor, rotation: Rotation | None, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: None where positions do not turn queries and keys."""
        query = scale_query(self._heads(self.q_proj(hidden), self.q_norm, rotation), rotation)
        key, value = (None, None) if self.k_proj is None else self._keys_and_values(hidden, rotation)
        options = {"keep": True} if self.is_shared else {}
        attended = attention(
            self.keys_of,
            query,
            key,
            value,
            scale=self.scale,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            sinks=self.sinks,
            alibi=None if self.alibi is None else alibi_slopes(self.num_heads, self.alibi, hidden.device),
            **options,
        )
        if self.gate_proj is not None:
            gates = self.gate_proj(hidden)
            gates = gates[:, :, None] if self._gate == "headwise" else gates.unflatten(-1, (-1, self.value_dim))
            if self.gate_bias is not None:
                gates = gates + self.gate_bias[:, None]
            attended = attended * self._gate_function(gates)
        if self.differential is not None:
            attended = self.differential(attended)
        attended = attended.flatten(1)
        return self.o_proj(attended if self.output_norm is None else self.output_norm(attended))

    def _keys_and_values(self, hidden: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """[T, hidden_size] -> [T, num_kv_heads, head_dim], [T, num_kv_heads, value_dim]."""
        assert self.k_proj is not None, "a layer with keys of its own"
        projected = self.k_proj(hidden)
        value = projected if self.v_proj is None else self.v_proj(hidden)
        if self.clip is not None:
            value = value.clamp(-self.clip, self.clip)
        value = value.unflatten(-1, (-1, self.value_dim))
        if self.v_norm is not None:
            value = self.v_norm(value)
        if self.value_scale != 1.0:
            value = value * self.value_scale
        if self.differential is not None:
            value = self.differential.widen(value)
        return self._heads(projected, self.k_norm, rotation), value

    def _heads(self, projected: Tensor, norm: nn.Module | None, rotation: Rotation | None) -> Tensor:
        """[T, num_heads * head_dim] -> [T, num_heads, head_dim], normed, clipped and rotated."""
        # -1: under tensor parallelism a rank holds only some of the heads.
        split = (-1, self.head_dim)
        if norm is None or self.norm_after_rotary:
            heads = projected.unflatten(-1, split)
        elif self.full_width_norms:
            heads = norm(projected).unflatten(-1, split)
        else:
            heads = norm(projected.unflatten(-1, split))
        if self.clip is not None:
            heads = heads.clamp(-self.clip, self.clip)
        heads = rotate(heads, rotation)
        if norm is None or not self.norm_after_rotary:
            return heads
        return norm(heads.flatten(1)).unflatten(-1, split) if self.full_width_norms else norm(heads)


_PAIRS: Final = "expected an even number of heads, and neither gates, nor sinks, nor a norm over all heads"
_GATES: Final[dict[str, Callable[[Tensor], Tensor]]] = {"sigmoid": torch.sigmoid, "softplus": functional.softplus}


class PackedAttention:
    """Causal attention within each sequence of a packed forward. Make one per forward; layers share its index tables.

    Padding, where there is any, sits to the right of every sequence, so causality alone hides it and the fused kernel
    needs no mask.
    """

    stateless: Final = True
    """The same call gives the same result any number of times, so that a block may be recomputed."""

    def __init__(self, cu_seqlens: Tensor, num_tokens: int, device: torch.device) -> None:
        """cu_seqlens: [S + 1], rising from 0 to num_tokens (ModelError otherwise); empty sequences are allowed."""
        bounds = cu_seqlens.tolist()
        spans = [(start, end - start) for start, end in itertools.pairwise(bounds)]
        fits = len(bounds) > 1 and bounds[0] == 0 and bounds[-1] == num_tokens > 0
        if not fits or any(length < 0 for _, length in spans):
            raise ModelError(
                f"cu_seqlens must rise from 0 to the number of tokens, which is {num_tokens} (at least 1), "
                f"got {bounds if len(bounds) < 9 else [*bounds[:4], '...', *bounds[-4:]]}"
            )
        self._spans = [span for span in spans if span[1]]
        self._longest = max(length for _, length in self._spans)
        self._num_tokens, self._device = num_tokens, device
        self._selections = Selections[list[Tensor | None]]()
        self._kept = KeptKeys()

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
        """See `AttentionBackend`; every feature is supported. Returns [T, num_heads, value_dim]."""
        key, value = self._kept.take(layer, key, value, keep=keep)
        options = AttentionOptions(scale, window, chunk, softcap, sinks, alibi, selected)
        if (kernel := find_kernel(query, key, value, options, longest=self._longest)) is not None:
            window = None if window is None or window >= self._longest else window
            return attend_runs(kernel, query, [(key, value, self._runs)], scale=scale, window=window)
        chosen = self._selections.of(layer) if selected else [None] * len(self._batches)
        outputs = []
        for (batch, visibility), seen in zip(self._batches, chosen, strict=True):
            q, k, v = (batch.gather(heads).transpose(1, 2) for heads in (query, key, value))
            outputs.append(batch.scatter(attend(q, k, v, visibility, options, seen)))
        return outputs[0] if self._restore is None else torch.cat(outputs).index_select(0, self._restore)

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `SelectionBackend.select`."""
        chosen = []
        for batch, visibility in self._batches:
            q, k, w = (batch.gather(part) for part in (query, key, weight))
            chosen.append(choose(q, k, w, visibility.mask(None, None), count))
        self._selections.keep(layer, chosen)

    # Tables are made for the first layer that needs them: of a model, most need one kind only.

    @cached_property
    def _runs(self) -> KeyRuns:
        lengths = [length for _, length in self._spans]
        return KeyRuns.of(lengths, lengths, self._device, causal=True)

    @cached_property
    def _groups(self) -> list[list[tuple[int, int]]]:
        return _group(self._spans)

    @cached_property
    def _batches(self) -> list[tuple[Rectangle, Visibility]]:
        batches = [make_rectangle(group, self._num_tokens, self._device) for group in self._groups]
        return [(batch, Visibility(batch.length, 0, self._device)) for batch in batches]

    @cached_property
    def _restore(self) -> Tensor | None:
        return restoring_order(self._groups, self._device)


def _group(spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Split (start, length) spans into groups in which padding to the longest wastes less than half the cells."""
    longest = max(length for _, length in spans)
    if longest * len(spans) <= MAX_PADDING_RATIO * sum(length for _, length in spans):
        return [spans]
    groups: dict[int, list[tuple[int, int]]] = {}
    for span in spans:
        groups.setdefault((span[1] - 1).bit_length(), []).append(span)
    return list(groups.values())
