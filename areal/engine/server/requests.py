"""Runs one generation over as many calls, servers and weight versions as necessary, on the engine's loop."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from areal.api import EngineError, FaultError, FaultKind, StopReason
from areal.engine.server.checks import check_tokens
from areal.engine.server.errors import (
    BadAnswerError,
    BadStatusError,
    BrokenTokensError,
    ConnectionFailedError,
    ReplacedError,
    ServerError,
    StalledError,
)
from areal.engine.server.generation import CallProgress, Generation, stop_reason
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from areal.api import ModelResponse
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import Chunk, ServerAdapter
    from areal.engine.server.client import ServerClient
    from areal.engine.server.fleet import Server
    from areal.engine.server.members import ServerMembers

_logger = getLogger(__name__)
_PATIENCE_SECONDS = 5.0
_MAX_EMPTY_CALLS = 100


class GenerationRunner:
    """Runs generations; holds no state of its own."""

    def __init__(
        self, members: ServerMembers, adapter: ServerAdapter, client: ServerClient, config: ServerEngineConfig
    ) -> None:
        self._members, self._adapter, self._client, self._config = members, adapter, client, config

    async def run(self, generation: Generation) -> ModelResponse:
        """Call servers until the generation is complete or aborted.

        Raises FaultError(GENERATION_FAILED) after max_attempts failed calls, FaultError(DATA_INVALID) when a server
        refuses the request as such, EngineError when no server is left.
        """
        failed_on: set[str] = set()
        name = ""
        while True:
            if (reason := self._outcome(generation)) is not None:
                return await self._respond(generation, reason, name)
            server = await self._acquire(generation, failed_on)
            if server is None:
                return await self._respond(generation, StopReason.ABORT, name)
            name = server.instance.name
            try:
                await self._call(generation, server)
            except ServerError as error:
                failed_on.add(server.instance.incarnation)
                self._after_failure(generation, server, error)
            else:
                self._count_continuation(generation)

    async def _respond(self, generation: Generation, reason: StopReason, server: str) -> ModelResponse:
        """Return the response once the engine has the version of its last token: servers switch one by one."""
        if generation.versions and generation.versions[-1] > self._members.version:
            await self._members.settled()
        return generation.response(reason, server=server)

    def _count_continuation(self, generation: Generation) -> None:
        if generation.finished_by is not None or generation.abort_asked:
            return
        self._members.tally["continued"] += 1
        if generation.empty_calls > _MAX_EMPTY_CALLS:
            raise FaultError(
                FaultKind.GENERATION_FAILED, f"cut {generation.empty_calls} times in a row without a new token"
            )

    @staticmethod
    def _outcome(generation: Generation) -> StopReason | None:
        finished = generation.finished_by
        if finished is None and generation.abort_asked:
            return StopReason.ABORT
        return finished

    async def _acquire(self, generation: Generation, avoid: set[str]) -> Server | None:
        """Return a server; None if the generation was aborted meanwhile."""
        return await self._members.fleet.acquire(
            generation.prefix,
            avoid=avoid,
            is_hopeless=self._members.is_hopeless,
            given_up=lambda: generation.abort_asked,
        )

    async def _call(self, generation: Generation, server: Server) -> None:
        """Make one call; keep the certain part of its output whether it succeeds or fails."""
        progress = CallProgress(generation.next_call(), server.version)
        if server.changing:
            # It may sample with the new weights from the first token on: nothing is certain before its labels come.
            progress.mark_boundary()
        generation.current = progress
        server.calls.add(progress)
        last: Chunk | None = None
        try:
            last = await self._receive(generation, progress, server)
        except ReplacedError:
            raise  # nobody knows which weights its tokens are of
        except ServerError as error:
            if progress.stopped_at is None or isinstance(error, BadAnswerError):
                self._members.tally["salvaged_tokens"] += progress.settle_partial(generation)
                raise
            # All of the answer came; what routers chose, for which the stream was left open, is not worth another one.
            _logger.debug("%s broke off after a stop string: %s", server.where, error)
        finally:
            server.calls.discard(progress)
            generation.current = None
        if last is None:
            progress.settle_partial(generation)
        else:
            await self._settle(generation, progress, server, last)
        generation.empty_calls = 0 if progress.tokens else generation.empty_calls + 1

    async def _receive(self, generation: Generation, progress: CallProgress, server: Server) -> Chunk | None:
        """Read the stream to its last chunk; None if it was ended early because of a stop string or an abort."""
        stream = self._adapter.stream(
            self._client,
            server.instance.url,
            progress.call,
            capabilities=server.capabilities,
            patience=min(_PATIENCE_SECONDS, self._config.stall_seconds / 4),
        )
        begun, after_abort = time.monotonic(), 0
        async with contextlib.aclosing(stream):  # type: ignore[type-var]  # adapters write them as async generators
            async for chunk in stream:
                if chunk is None:
                    self._check_progress(server, begun)
                    continue
                server.last_token_at = time.monotonic()
                if progress.stopped_at is None:  # no token after a stop string counts
                    self._check_chunk(chunk, progress, server, generation)
                before = len(progress.tokens)
                progress.add(chunk, where=server.where)
                self._members.tally["generated_tokens"] += len(chunk.tokens)
                if progress.stopped_at is None:
                    stop = generation.stops_at([*generation.tokens, *progress.tokens[:before]], chunk.tokens)
                    progress.stopped_at = None if stop is None else before + stop
                    if stop is not None and progress.call.routers is None:
                        return None
                    if stop is not None and not chunk.finish and chunk.routes is None:
                        # Not left: the last chunk brings what routers chose.
                        try:
                            await self._adapter.abort(
                                self._client,
                                server.instance.url,
                                [progress.call.call_id],
                                timeout=self._config.control_seconds,
                            )
                        except ServerError:
                            return None  # the answer is complete without it
                if chunk.finish:
                    server.errors_in_a_row = 0
                    return chunk if progress.stopped_at is None else None
                if progress.stopped_at is not None and chunk.routes is not None:
                    return None  # the adapter would go on with another request of the call
                # An abort that came before the call itself is one the server knows nothing of. One message may have
                # crossed it on its way; a second one says that the call goes on.
                after_abort += generation.abort_asked
                if after_abort > 1:
                    return None
        raise ConnectionFailedError(f"{server.where}: the stream ended without a last chunk")

    async def _settle(self, generation: Generation, progress: CallProgress, server: Server, last: Chunk | None) -> None:
        if last is None:
            return
        needs_new = progress.boundary is not None or server.changing
        if needs_new:
            await self._members.settled()
        # A version counts only after the server passed its probe: until then `server.version` is the one before.
        complete = progress.settle_complete(generation, last, newest=server.version, where=server.where)
        reason = stop_reason(last.finish)
        if complete and reason is not StopReason.ABORT and generation.finished_by is None:
            raise BrokenTokensError(
                f"{server.where} says {last.finish!r} after {len(progress.tokens)} tokens, but they neither end in a "
                f"stop token nor fill the budget of {progress.call.max_tokens}"
            )
        if complete and self._config.parity:
            await self._check_parity(generation, progress, server)

    def _check_chunk(self, chunk: Chunk, progress: CallProgress, server: Server, generation: Generation) -> None:
        check_tokens(chunk.tokens, chunk.logprobs, where=server.where, vocab_size=generation.limits.vocab_size)
        if len(progress.tokens) + len(chunk.tokens) > progress.call.max_tokens:
            raise BrokenTokensError(f"{server.where} sent more tokens than the budget of {progress.call.max_tokens}")

    def _check_progress(self, server: Server, begun: float) -> None:
        """Raise StalledError when the server should have sent a token to some call and has not."""
        if not server.alive:
            raise ConnectionFailedError(f"{server.where} was given up")
        if server.changing or self._members.fleet.paused:
            server.last_token_at = time.monotonic()
            return
        # A request may wait long in the server's queue, as long as the server serves others meanwhile.
        silent = time.monotonic() - max(server.last_token_at, begun)
        if silent > self._config.stall_seconds:
            raise StalledError(f"{server.where} sent no token for {silent:.0f} s")

    def _after_failure(self, generation: Generation, server: Server, error: ServerError) -> None:
        generation.failures += 1
        self._members.tally["failed_calls"] += 1
        if isinstance(error, BadStatusError) and error.our_fault:
            raise FaultError(FaultKind.DATA_INVALID, f"request {generation.request.request_id}: {error}") from error
        self._members.server_failed(server, error)
        if isinstance(error, BrokenTokensError):
            # Not silently retried elsewhere: a server with wrong numbers ruins training and must be noticed.
            raise FaultError(FaultKind.GENERATION_FAILED, str(error)) from error
        if generation.failures >= self._config.max_attempts:
            raise FaultError(
                FaultKind.GENERATION_FAILED, f"{generation.failures} calls failed, the last one: {error}"
            ) from error
        _logger.info(
            "request %s continues after %d tokens: %s", generation.request.request_id, len(generation.tokens), error
        )

    async def _check_parity(self, generation: Generation, progress: CallProgress, server: Server) -> None:
        """Score the call's tokens in one forward pass and compare with the values recorded while sampling."""
        config = generation.request.gconfig
        if progress.boundary is not None or config.filters or (config.temperature != 1 and not config.greedy):
            return  # nothing to compare with: a forward pass gives the plain distribution of one version
        tokens = [*progress.call.prompt, *progress.tokens]
        scores = await self._adapter.score(
            self._client,
            server.instance.url,
            tokens,
            images=progress.call.images,
            timeout=self._config.control_seconds,
        )
        if progress.boundary is not None or server.version != progress.version:
            return
        pairs = zip(scores[-len(progress.tokens) :], progress.logprobs, strict=True)
        worst = max((abs(one - other) for one, other in pairs), default=0.0)
        tally = self._members.tally
        tally["parity_checks"] += 1
        tally["parity_abs_max"] = max(tally["parity_abs_max"], worst)
        if worst > self._config.parity_tolerance:
            raise EngineError(
                f"{server.where}: log-probabilities recorded while sampling differ by up to {worst:.3g} from "
                f"those of one forward pass over the same tokens; parity_tolerance is {self._config.parity_tolerance:g}"
            )
