"""Tracks one generation across servers and weight versions: its tokens, what is left to request, when it ends.

Plain values; no network. A generation consists of calls (attempts at one server). Tokens of a call are added only with
a certain version: that of the server's own labels if the call ended normally, otherwise only tokens received before the
server's weights began to change.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from areal.api import ModelResponse, StopReason
from areal.engine.server.adapter import Call
from areal.engine.server.checks import versions_of
from areal.engine.server.errors import BrokenTokensError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import ModelRequest
    from areal.engine.checks import RequestLimits
    from areal.engine.server.adapter import Chunk
    from areal.engine.server.routes import ServedRouters

_FINISHES = {"stop": StopReason.STOP, "length": StopReason.LENGTH, "abort": StopReason.ABORT}


@dataclass(slots=True, eq=False)
class Generation:
    """A request and its output with certain versions."""

    request: ModelRequest
    limits: RequestLimits
    stream_interval: int
    adapter: str = ""
    """Name on servers of what the request's adapter was when it began."""
    routers: ServedRouters | None = None
    """Of the model, when what they choose is recorded."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)
    """What routers chose for the first `num_routed` tokens of prompt and output."""
    num_routed: int = 0
    calls: int = 0
    failures: int = 0
    """Calls that failed; calls cut by a weight update do not count."""
    empty_calls: int = 0
    """Consecutive calls that were cut before their first token."""
    abort_asked: bool = False
    current: CallProgress | None = None
    accepted_at: float = field(default_factory=time.perf_counter)

    @property
    def finished_by(self) -> StopReason | None:
        """STOP or LENGTH when the output is complete, else None."""
        request, limits = self.request, self.limits
        if not self.tokens:
            return None
        if self.tokens[-1] in limits.stop_ids(request) and len(self.tokens) >= request.gconfig.min_new_tokens:
            return StopReason.STOP
        if limits.completes_stop_string(request, self.tokens):
            return StopReason.STOP
        return StopReason.LENGTH if len(self.tokens) >= limits.budget(request) else None

    @property
    def prefix(self) -> Sequence[int | str]:
        """The prompt without tokens sampled earlier, after its adapter and the digests of its images: all samples of a
        prompt share it."""
        tokens = self.request.input_ids[: len(self.request.input_ids) - self.request.sampled_before]
        return [*filter(None, [self.adapter]), *(ref.image.digest for ref in self.request.images), *tokens]

    def next_call(self) -> Call:
        """Return the call for the next server."""
        config = self.request.gconfig
        self.calls += 1
        return Call(
            call_id=f"{self.request.request_id}.{self.calls}",
            prompt=[*self.request.input_ids, *self.tokens],
            max_tokens=self.limits.budget(self.request) - len(self.tokens),
            min_tokens=max(0, config.min_new_tokens - len(self.tokens)),
            stop_token_ids=self.limits.stop_ids(self.request),
            temperature=0.0 if config.greedy else config.temperature,
            top_p=1.0 if config.greedy else config.top_p,
            top_k=0 if config.greedy else config.top_k,
            seed=_seed(self.request.seed, self.request.sampled_before + len(self.tokens)),
            stream_interval=self.stream_interval,
            images=self.request.images,
            adapter=self.adapter,
            routers=self.routers,
            routes_from=self.num_routed,
        )

    def stops_at(self, before: Sequence[int], newer: Sequence[int]) -> int | None:
        """Return the number of `newer` tokens up to the one that completes a stop string; None if none does."""
        for count in range(1, len(newer) + 1):
            if self.limits.completes_stop_string(self.request, [*before, *newer[:count]]):
                return count
        return None

    def settle(
        self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], routes: Sequence[Tensor]
    ) -> None:
        """Append tokens with certain versions. routes: that follow the known ones, as far as the call reported them.

        The next call computes tokens without routes again, and reports theirs; that of the last token always, because
        what is sampled next depends on it.
        """
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += versions
        for part in routes if tokens else ():
            known = part[: len(self.request.input_ids) + len(self.tokens) - 1 - self.num_routed]
            self.routes.append(known)
            self.num_routed += known.shape[0]

    def response(self, reason: StopReason, *, server: str) -> ModelResponse:
        """Return the output as the caller receives it."""
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
            routes=None
            if self.routers is None
            else self.routers.join(self.routes, len(self.request.input_ids) + len(self.tokens) - 1),
        )


@dataclass(slots=True, eq=False)
class CallProgress:
    """The tokens received by one call."""

    call: Call
    version: int
    """Version of the server's weights when the call began."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)
    boundary: int | None = None
    """Number of tokens received before the server's weights began to change; None if they have not changed."""
    stopped_at: int | None = None
    """Number of tokens up to a stop string found by this process, which then ends the call."""

    def add(self, chunk: Chunk, *, where: str) -> None:
        """Take what is new. Raises BrokenTokensError for routes of other tokens than those asked for.

        Example: after a prompt of 5 with routes of 3 and an output of 4, they are those of tokens 3 to 7, 5 in all. A
        server that ignores where to begin sends 8. One that was cut may have fewer.
        """
        if chunk.routes is not None:
            found = sum(part.shape[0] for part in (*self.routes, chunk.routes))
            computed = len(self.call.prompt) + len(self.tokens) + len(chunk.tokens) - 1
            asked = computed - self.call.routes_from
            if found > asked or (found < asked and chunk.finish in {"stop", "length"}):
                raise BrokenTokensError(
                    f"{where} sent experts of {found} tokens, expected {asked}: tokens {self.call.routes_from} to "
                    f"{computed - 1}"
                )
            self.routes.append(chunk.routes)
        self.tokens += chunk.tokens
        self.logprobs += chunk.logprobs

    def mark_boundary(self) -> None:
        """Record that the server's weights are about to change: later tokens may be of either version."""
        if self.boundary is None:
            self.boundary = len(self.tokens)

    @property
    def num_certain(self) -> int:
        """Number of tokens certainly sampled by `version`."""
        return len(self.tokens) if self.boundary is None else self.boundary

    def settle_partial(self, generation: Generation) -> int:
        """Keep the certain tokens of a failed or cut call; return their number."""
        count = self.num_certain if self.stopped_at is None else min(self.num_certain, self.stopped_at)
        generation.settle(self.tokens[:count], self.logprobs[:count], [self.version] * count, self.routes)
        return count

    def settle_complete(self, generation: Generation, chunk: Chunk, *, newest: int, where: str) -> bool:
        """Keep the tokens of a completed call up to version `newest`; return False if some were left out.

        Raises BrokenTokensError when the server's labels contradict themselves.
        """
        versions = [self.version] * len(self.tokens)
        if chunk.spans is not None:
            versions = versions_of(chunk.spans, len(self.tokens), where=where)
        elif self.boundary is not None:
            versions = versions[: self.boundary]
        count = sum(version <= newest for version in versions)
        generation.settle(self.tokens[:count], self.logprobs[:count], versions[:count], self.routes)
        return count == len(self.tokens)


def stop_reason(finish: str) -> StopReason:
    """Convert the `finish` of a last chunk."""
    return _FINISHES[finish]


def _seed(seed: int | None, position: int) -> int:
    """Return the seed of a call that begins at a position. A server counts its random numbers from the start of the
    call: with the same seed, a continuation would repeat the random numbers of the tokens before it."""
    assert seed is not None, "the engine gives every request a seed"
    if position == 0:
        return seed % 2**63
    mixed = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little") % 2**63
