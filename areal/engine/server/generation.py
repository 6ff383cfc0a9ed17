"""One generation on its way over servers and weight versions: what it has, what is left to ask for, when it ends.

Plain values; no network. A generation consists of calls (attempts at one server). Tokens of a call become part of the
generation only with a version that is certain: the server's own labels when the call ends in order, else those received
before the server's weights began to change.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from areal.api import ModelResponse, StopReason
from areal.engine.server.adapter import Call
from areal.engine.server.checks import versions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.api import ModelRequest
    from areal.engine.server.adapter import Chunk
    from areal.engine.server.checks import RequestLimits

# A character takes at most 4 byte-level tokens, so this many trailing tokens per character surely contain the stop
# string.
_TOKENS_PER_CHARACTER = 4
_FINISHES = {"stop": StopReason.STOP, "length": StopReason.LENGTH, "abort": StopReason.ABORT}


@dataclass(slots=True, eq=False)
class Generation:
    """A request and its settled output."""

    request: ModelRequest
    limits: RequestLimits
    stream_interval: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    calls: int = 0
    failures: int = 0
    """Calls that failed, which is not the same as calls that were cut by a weight update."""
    empty_calls: int = 0
    """Calls in a row that were cut before their first token."""
    abort_asked: bool = False
    current: CallProgress | None = None
    accepted_at: float = field(default_factory=time.perf_counter)

    @property
    def budget(self) -> int:
        """Tokens this request may produce in all."""
        return min(self.request.gconfig.max_new_tokens, self.limits.context - len(self.request.input_ids))

    @property
    def finished_by(self) -> StopReason | None:
        """STOP or LENGTH when the settled output is complete."""
        if self.tokens and self.tokens[-1] in self.stop_ids and len(self.tokens) >= self.request.gconfig.min_new_tokens:
            return StopReason.STOP
        if self.tokens and self.stops_at(self.tokens[:-1], self.tokens[-1:]) is not None:
            return StopReason.STOP
        return StopReason.LENGTH if len(self.tokens) >= self.budget else None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end it."""
        eos = () if self.limits.eos_token_id is None else (self.limits.eos_token_id,)
        return tuple(dict.fromkeys((*eos, *self.request.gconfig.stop_token_ids)))

    @property
    def prefix(self) -> Sequence[int]:
        """The prompt proper, without what was sampled before: samples of one prompt share it."""
        return self.request.input_ids[: len(self.request.input_ids) - self.request.sampled_before]

    def next_call(self) -> Call:
        """What to ask the next server for."""
        config = self.request.gconfig
        self.calls += 1
        return Call(
            call_id=f"{self.request.request_id}.{self.calls}",
            prompt=[*self.request.input_ids, *self.tokens],
            max_tokens=self.budget - len(self.tokens),
            min_tokens=max(0, config.min_new_tokens - len(self.tokens)),
            stop_token_ids=self.stop_ids,
            temperature=0.0 if config.greedy else config.temperature,
            top_p=1.0 if config.greedy else config.top_p,
            top_k=0 if config.greedy else config.top_k,
            seed=_seed(self.request.seed, self.request.sampled_before + len(self.tokens)),
            stream_interval=self.stream_interval,
        )

    def stops_at(self, before: Sequence[int], newer: Sequence[int]) -> int | None:
        """Number of `newer` tokens up to the one that completes a stop string; None when none does."""
        config = self.request.gconfig
        if not config.stop:
            return None
        window = _TOKENS_PER_CHARACTER * max(map(len, config.stop)) + 8
        partial = self.request.input_ids[len(self.request.input_ids) - self.request.sampled_before :]
        history = [*partial, *before]
        for count in range(1, len(newer) + 1):
            if len(before) + count < config.min_new_tokens:
                continue
            text = self.limits.tokenizer.decode([*history, *newer[:count]][-window:])
            if any(stop in text for stop in config.stop):
                return count
        return None

    def settle(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append tokens with certain versions."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions

    def response(self, reason: StopReason, *, server: str) -> ModelResponse:
        """The settled output as the caller gets it."""
        metadata: dict[str, object] = {"server": server}
        if self.failures:
            metadata["failed_calls"] = self.failures
        return ModelResponse(
            input_tokens=list(self.request.input_ids),
            output_tokens=self.tokens,
            output_logprobs=self.logprobs,
            output_versions=self.versions,
            stop_reason=reason,
            latency_seconds=time.perf_counter() - self.accepted_at,
            metadata=metadata,
        )


@dataclass(slots=True, eq=False)
class CallProgress:
    """What one call has received."""

    call: Call
    version: int
    """Of the server's weights when the call began."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    boundary: int | None = None
    """Tokens received when the server's weights first began to change during this call; None when they did not."""
    stopped_at: int | None = None
    """Tokens up to a stop string that was found here; the call is then cut from this side."""

    def add(self, chunk: Chunk) -> None:
        self.tokens += chunk.tokens
        self.logprobs += chunk.logprobs

    def mark_boundary(self) -> None:
        """The server's weights are about to change: what comes from now on may be of either version."""
        if self.boundary is None:
            self.boundary = len(self.tokens)

    @property
    def num_certain(self) -> int:
        """Tokens that were surely sampled by `version`."""
        return len(self.tokens) if self.boundary is None else self.boundary

    def settle_partial(self, generation: Generation) -> int:
        """After a failed or cut call: keep what is certain; returns how many tokens that are."""
        count = self.num_certain if self.stopped_at is None else min(self.num_certain, self.stopped_at)
        generation.settle(self.tokens[:count], self.logprobs[:count], [self.version] * count)
        return count

    def settle_complete(self, generation: Generation, chunk: Chunk, *, newest: int, where: str) -> bool:
        """After the last chunk: settle all of it that is at most version `newest`; False when some had to be left out.

        Raises BrokenTokensError when the server's labels contradict themselves.
        """
        versions = [self.version] * len(self.tokens)
        if chunk.spans is not None:
            versions = versions_of(chunk.spans, len(self.tokens), where=where)
        elif self.boundary is not None:
            versions = versions[: self.boundary]
        count = sum(version <= newest for version in versions)
        generation.settle(self.tokens[:count], self.logprobs[:count], versions[:count])
        return count == len(self.tokens)


def stop_reason(finish: str) -> StopReason:
    """Of a last chunk."""
    return _FINISHES[finish]


def _seed(seed: int, position: int) -> int:
    """Of the call that begins at a position. A server counts its random numbers from the start of the call: with the
    same seed again, a continuation would draw the numbers of the tokens before it once more."""
    if position == 0:
        return seed % 2**63
    mixed = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little") % 2**63
