"""What goes into and comes out of an inference engine: token ids in, token ids with log-probabilities and versions
out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from areal.api.config import Config, number
from areal.api.errors import ConfigError
from areal.api.images import check_images
from areal.api.records import _changed_copy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal.api.images import ImageRef
    from areal.api.records import StopReason

_request_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Config):
    """How tokens are sampled."""

    max_new_tokens: int = number(512, at_least=1)
    """Most tokens to generate per request; fewer when the context ends first."""
    min_new_tokens: int = number(0, at_least=0)
    """Stop tokens are forbidden (probability 0, renormalised) before this many tokens."""
    temperature: float = number(1.0, above=0, because="for deterministic decoding set greedy=true")
    """Logits are divided by this before the softmax; the trainer applies the same division."""
    top_p: float = number(1.0, above=0, at_most=1)
    """Keep the smallest set of tokens whose probability, after top_k, reaches this; 1.0 keeps all."""
    top_k: int = number(0, at_least=0, because="0 is off")
    """Keep the k most probable tokens; 0 keeps all."""
    greedy: bool = False
    """Take the most probable token; temperature, top_p and top_k are then ignored and log-probabilities are those at
    temperature 1."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a generation, besides the tokenizer's end-of-sequence token; the stop token is part of the
    output."""
    stop: tuple[str, ...] = ()
    """Strings that end a generation (checked on decoded text); the text that completes the string is part of the
    output."""

    def __post_init__(self) -> None:
        """Check what ranges of single fields do not say."""
        super().__post_init__()
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {self.min_new_tokens}, expected 0 .. max_new_tokens ({self.max_new_tokens})"
            )
        if not all(0 <= token < 2**31 for token in self.stop_token_ids):
            raise ConfigError(f"stop_token_ids is {self.stop_token_ids}, expected token ids from 0 to 2**31 - 1")

    @property
    def filters(self) -> bool:
        """Whether tokens are drawn from less than the full softmax, so that log-probabilities are renormalised."""
        return not self.greedy and (self.top_p < 1 or self.top_k > 0 or self.min_new_tokens > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One generation. Token ids in, never text: re-tokenising would change what the policy is trained on.

    Example: `ModelRequest(input_ids=[5, 9, 2], gconfig=GenerationConfig(max_new_tokens=8), seed=7)`.
    """

    input_ids: list[int]
    """Prompt, followed by any partial output that is being continued."""
    gconfig: GenerationConfig
    request_id: str = field(default_factory=lambda: f"request-{next(_request_numbers)}")
    """Unique in this process."""
    seed: int | None = None
    """Randomness of this request; None takes the next seed of the engine's own stream, another for each request. Token
    number i (counted from the start of the *original* generation) depends only on (seed, sampled_before + i) and the
    model, never on what else is in the batch."""
    sampled_before: int = 0
    """How many trailing entries of `input_ids` are partial output of the same generation (a continuation after an
    abort). max_new_tokens and min_new_tokens count from here: a continuation lowers them by what it has already."""
    images: tuple[ImageRef, ...] = ()
    """Images of `input_ids`, which has all placeholder tokens of each, in order of their columns."""
    adapter: str = ""
    """Name of an adapter that was loaded on the engine's servers beside its weights; empty for the weights alone."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """`seed_key`: names this request among those of its episode; its seed then depends on the name instead of on how
    many requests the episode made before."""

    def __post_init__(self) -> None:
        """Raise ValueError for images that are not inside `input_ids`."""
        if self.images:
            check_images(self.images, len(self.input_ids), where=f"request {self.request_id}")

    def seeded(self, seed: int) -> ModelRequest:
        """Return the same request with this seed."""
        return _changed_copy(self, {"seed": seed})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """Result of one generation; the three lists have equal length.

    Example: `ModelResponse(input_tokens=[5, 9, 2], output_tokens=[11, 1], output_logprobs=[-0.7, -0.1],
    output_versions=[4, 4], stop_reason=StopReason.STOP)`.
    """

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    """Log-probability of each output token under the processed distribution it was sampled from."""
    output_versions: list[int]
    """Policy version each output token was sampled with; a request that lives through a weight update has several."""
    stop_reason: StopReason
    latency_seconds: float = 0.0
    """Wall time from acceptance to completion."""
    routes: Tensor | None = field(default=None, compare=False, repr=False)
    """Experts that routers chose for all input and output tokens but the last, uint8 or int16 [T - 1, M, K]
    (`areal.utils.routes`); None from engines that do not record them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Equal lengths, or the mask of the whole trajectory is off."""
        if not len(self.output_tokens) == len(self.output_logprobs) == len(self.output_versions):
            raise ValueError(
                f"response: {len(self.output_tokens)} tokens, {len(self.output_logprobs)} log-probabilities, "
                f"{len(self.output_versions)} versions; expected equal counts"
            )
