"""One accepted request and what has been generated for it. Plain values; nothing here computes tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from areal.api import ConfigError, FaultError, FaultKind, ModelRequest, ModelResponse, StopReason

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

# A character takes at most 4 byte-level tokens, so this many trailing tokens per character surely contain the stop
# string.
_TOKENS_PER_CHARACTER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a request is checked against."""

    context: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    eos_token_id: int | None
    tokenizer: Any = None
    """Has `decode(list[int]) -> str`; needed for stop strings only."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """A request on its way: waiting, or active in a slot of the batch."""

    request: ModelRequest
    future: asyncio.Future[ModelResponse]
    limit: int
    """Tokens this request may produce."""
    stop_ids: tuple[int, ...]
    tokenizer: Any
    context: NDArray[np.int64]
    """All tokens that precede the next one at the time of (re-)admission."""
    key: bytes = field(init=False)
    """`context` as something hashable: sequences with equal keys share a prefill."""
    tokens: list[int] = field(default_factory=list)
    """Output settled so far; the batch holds newer tokens until it flushes them."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    accepted_at: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Derive the key."""
        self.key = self.context.tobytes()

    def settle(self, tokens: list[int], logprobs: list[float], version: int) -> None:
        """Append tokens that were all sampled at `version`."""
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        self.versions.extend([version] * len(tokens))
        self.context = np.array([*self.request.input_ids, *self.tokens], dtype=np.int64)
        self.key = self.context.tobytes()

    def response(self, reason: StopReason) -> ModelResponse:
        """The settled output as the caller gets it."""
        return ModelResponse(
            input_tokens=list(self.request.input_ids),
            output_tokens=self.tokens,
            output_logprobs=self.logprobs,
            output_versions=self.versions,
            stop_reason=reason,
            latency_seconds=time.perf_counter() - self.accepted_at,
        )

    def completes_stop_string(self, newer: list[int]) -> bool:
        """Whether the output, `newer` tokens not yet settled included, ends in or just completed a stop string."""
        config = self.request.gconfig
        if len(self.tokens) + len(newer) < config.min_new_tokens:
            return False
        window = _TOKENS_PER_CHARACTER * max(map(len, config.stop)) + 8
        partial = self.request.input_ids[len(self.request.input_ids) - self.request.sampled_before :]
        text = self.tokenizer.decode((partial + self.tokens + newer)[-window:])
        return any(stop in text for stop in config.stop)


def accept(request: ModelRequest, future: asyncio.Future[ModelResponse], limits: RequestLimits) -> Sequence:
    """Check a request and wrap it.

    Raises FaultError(DATA_INVALID) for a prompt that is empty, holds unknown token ids, or leaves no room in the
    context, and ConfigError for stop strings without a tokenizer.
    """
    ids, config = request.input_ids, request.gconfig
    length = len(ids)
    if length == 0:
        raise FaultError(
            FaultKind.DATA_INVALID, f"request {request.request_id}: the prompt is empty (0 tokens), expected at least 1"
        )
    if length >= limits.context:
        raise FaultError(
            FaultKind.DATA_INVALID,
            f"request {request.request_id}: a prompt of {length} tokens leaves no room in the context of "
            f"{limits.context} tokens (the smaller of max_seq_len and the model's max_position_embeddings); "
            f"shorten or drop the row",
        )
    low, high = min(ids), max(ids)
    if low < 0 or high >= limits.vocab_size:
        raise FaultError(
            FaultKind.DATA_INVALID,
            f"request {request.request_id}: token id {low if low < 0 else high} is outside the model's vocabulary of "
            f"{limits.vocab_size}; tokenizer and model do not belong together",
        )
    if not 0 <= request.sampled_before <= length:
        raise FaultError(
            FaultKind.DATA_INVALID,
            f"request {request.request_id}: sampled_before is {request.sampled_before}, "
            f"expected 0 .. {length} (the number of input_ids)",
        )
    if config.stop and limits.tokenizer is None:
        raise ConfigError(
            f"gconfig.stop is {config.stop!r}, but the engine was built without a tokenizer; "
            f"pass tokenizer= or use stop_token_ids"
        )
    eos = () if limits.eos_token_id is None else (limits.eos_token_id,)
    return Sequence(
        request=request,
        future=future,
        limit=min(config.max_new_tokens, limits.context - length),
        stop_ids=tuple(dict.fromkeys((*eos, *config.stop_token_ids))),
        tokenizer=limits.tokenizer,
        context=np.array(ids, dtype=np.int64),
    )
