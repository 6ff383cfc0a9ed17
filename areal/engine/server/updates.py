"""Sends a weight version to servers: stage it on all of them, switch each during a pause, then probe.

    stage    the server fetches the tensors beside those in use, and its workers compare each with the manifest; for
             adapters, servers without the base get it first; servers that keep the version before get what differs
    switch   between two tokens: pause, put the staged tensors in use, label later tokens with the version, resume
    probe    the server scores a fixed sequence, which must get the log-probabilities that the trainer computes

A server that fails is evicted, never left half updated. Runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from areal.api import ArealError, EngineError, SentWeights
from areal.engine.server.errors import BadAnswerError, CalledOffError, ServerError, ServerRefusedError
from areal.utils import tracing
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from areal.api import ImageRef, PublishedWeights, WeightCarrier, WeightRoute
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import ServerAdapter
    from areal.engine.server.client import ServerClient
    from areal.engine.server.fleet import Server

_logger = getLogger(__name__)


class Probe:
    """A sequence, its images, and the trainer's log-probabilities of all its tokens but the first."""

    def __init__(self, tokens: Sequence[int], expected: Sequence[float], images: Sequence[ImageRef] = ()) -> None:
        self.tokens, self.expected, self.images = list(tokens), list(expected), tuple(images)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReference:
    """What the trainer computes, for probes."""

    score: Callable[[Sequence[int], Sequence[ImageRef]], list[float]]
    """Log-probabilities of all tokens of a sequence, with its images, but the first."""
    start: Sequence[int] = ()
    """Of a model that reads images, tokens with `images` that probes begin with: else nobody would notice an image half
    that kept old weights."""
    images: tuple[ImageRef, ...] = ()

    def probe(self, tokens: Sequence[int], *, with_images: bool) -> Probe:
        """Return the probe of these tokens, after `start` where servers are sent images."""
        images = self.images if with_images else ()
        whole = [*(self.start if with_images else ()), *tokens]
        return Probe(whole, self.score(whole, images), images)


class WeightUpdater:
    """Sends versions to servers. failed: called with a server and the reason when it failed to update."""

    def __init__(
        self,
        *,
        adapter: ServerAdapter,
        client: ServerClient,
        carrier: WeightCarrier,
        config: ServerEngineConfig,
        failed: Callable[[Server, str], None],
    ) -> None:
        self._adapter, self._client, self._carrier = adapter, client, carrier
        self._config, self._failed = config, failed
        self.tally = {"weight_retries": 0.0, "weight_failures": 0.0, "probes": 0.0, "probe_abs_max": 0.0,
                      "stage_seconds": 0.0, "switch_seconds": 0.0, "sent_bytes": 0.0, "skipped_bytes": 0.0}  # fmt: skip

    async def push(
        self, servers: Sequence[Server], published: PublishedWeights, probe: Probe | None, *, paused: bool
    ) -> list[Server]:
        """Update all `servers`; return those that succeeded. The others were evicted.

        paused: the engine is paused by its user: the servers stay paused and are not probed.

        Raises EngineError when every server refused it during staging: then the weights are wrong, not the servers, and
        all of them keep their current weights.
        """
        self.tally |= {"sent_bytes": 0.0, "skipped_bytes": 0.0}
        started = time.perf_counter()
        halted = [] if paused or not self._adapter.stages_paused else [one for one in servers if not one.asleep]
        with tracing.async_span("stage weights", version=published.manifest.version):
            problems = await self._control(halted, self._halt)
            ready = [server for server in servers if server not in problems]
            staged, found = await self._stage_all(ready, published)
            problems |= found
        self.tally["stage_seconds"] = time.perf_counter() - started
        refused = [error for error in problems.values() if isinstance(error, ServerRefusedError)]
        if servers and not staged and len(refused) == len(servers):
            for server, error in (await self._control(halted, self._unhalt)).items():
                self._give_up(server, str(error))
            raise EngineError(
                f"weight update to version {published.manifest.version} refused, the servers keep their weights: "
                f"{refused[0]}"
            )
        for server, error in problems.items():
            self._give_up(server, str(error))
        started = time.perf_counter()
        with tracing.async_span("switch weights", version=published.manifest.version):
            done = await asyncio.gather(*(self._switch(server, published, probe, paused=paused) for server in staged))
        self.tally["switch_seconds"] = time.perf_counter() - started
        return [server for server, good in zip(staged, done, strict=True) if good]

    async def check(self, server: Server, probe: Probe) -> None:
        """Compare server and trainer on the probe. Raises ServerRefusedError when they differ."""
        found = await self._adapter.score(
            self._client,
            server.instance.url,
            probe.tokens,
            images=probe.images,
            timeout=self._config.control_seconds,
        )
        if len(found) != len(probe.expected) or not all(map(math.isfinite, found)):
            raise ServerRefusedError(f"{server.where} scored a probe of {len(probe.tokens)} tokens as {found[:8]}")
        worst = max(abs(one - other) for one, other in zip(found, probe.expected, strict=True))
        self.tally["probes"] += 1
        self.tally["probe_abs_max"] = worst
        limit = self._config.resolved_probe_tolerance
        if worst > limit:
            raise ServerRefusedError(
                f"{server.where} gives log-probabilities that differ by up to {worst:.3g} from the trainer's, more "
                f"than probe_tolerance {limit:g}: it does not use the weights it was sent"
            )

    async def _control(
        self, servers: Sequence[Server], call: Callable[[Server], Awaitable[None]]
    ) -> dict[Server, Exception]:
        """Pause or resume servers together; return those that failed."""
        results = await asyncio.gather(*map(call, servers), return_exceptions=True)
        failed: dict[Server, Exception] = {}
        for server, result in zip(servers, results, strict=True):
            if isinstance(result, (ServerError, OSError)):
                failed[server] = result
            elif isinstance(result, BaseException):
                raise result
        return failed

    async def _halt(self, server: Server) -> None:
        """Pause a server for staging. Until `_switch` or `_unhalt` it counts as changing: it is silent, and a call that
        begins now may sample with the new weights."""
        server.changing = True
        for call in server.calls:
            call.mark_boundary()
        await self._pause(server)

    async def _unhalt(self, server: Server) -> None:
        try:
            await self._resume(server)
        finally:
            server.changing = False

    async def _pause(self, server: Server) -> None:
        await self._adapter.pause(
            self._client,
            server.instance.url,
            capabilities=server.capabilities,
            timeout=self._config.control_seconds,
        )

    async def _resume(self, server: Server) -> None:
        await self._adapter.resume(self._client, server.instance.url, timeout=self._config.control_seconds)

    async def _stage_all(
        self, servers: Sequence[Server], published: PublishedWeights
    ) -> tuple[list[Server], dict[Server, Exception]]:
        """Stage on all servers; return those that succeeded, and the last problem of each of the others."""
        # A broadcast waits for all its members: a missing one would cost everybody the whole timeout.
        problems = await self._unreachable(servers)
        base = published.base
        if base is not None:
            lacking = [one for one in servers if one not in problems and one.base != base.manifest.identity]
            problems |= await self._stage_patiently(lacking, base)
            for server in lacking:
                server.base = "" if server in problems else base.manifest.identity
        waiting = [server for server in servers if server not in problems]
        taken, lost = await self._stage_delta(waiting, published)
        problems |= lost
        problems |= await self._stage_patiently([one for one in waiting if one not in {*taken, *lost}], published)
        return [server for server in servers if server not in problems], problems

    async def _stage_delta(
        self, servers: Sequence[Server], published: PublishedWeights
    ) -> tuple[list[Server], dict[Server, Exception]]:
        """Stage what differs on servers that keep the version before; return those that have it now, and those that
        are gone. All others, one that refuses included, still need the whole version.
        """
        delta = published.delta
        current = [] if delta is None else [server for server in servers if server.kept == delta.since]
        if delta is None or not current:
            return [], {}
        failed: dict[Server, Exception] = {}
        waiting = current
        while waiting:
            found = await self._stage_once(waiting, replace(published, manifest=delta))
            failed = {server: error for server, error in failed.items() if server not in waiting} | found
            # Again, without the one that kept them off: each round is one of fewer servers.
            waiting = [server for server, error in found.items() if isinstance(error, CalledOffError)]
        for server, error in failed.items():
            _logger.warning("%s gets the whole of version %d: %s", server.where, delta.version, error)
            server.kept = ""
        lost = {server: error for server, error in failed.items() if not isinstance(error, ServerRefusedError)}
        return [server for server in current if server not in failed], lost

    async def _stage_patiently(self, servers: Sequence[Server], published: PublishedWeights) -> dict[Server, Exception]:
        """Stage with several attempts; return the failed servers with their last error."""
        problems: dict[Server, Exception] = {}
        waiting, attempts = list(servers), 0
        while waiting and attempts < self._config.weight_attempts:
            self.tally["weight_retries"] += len(waiting) if problems else 0
            failed = await self._stage_once(waiting, published)
            problems = {server: error for server, error in problems.items() if server not in waiting} | failed
            # Servers that did not answer are gone and are not asked again.
            refused = [server for server, error in problems.items() if isinstance(error, ServerRefusedError)]
            # First those that another server kept from taking part, without it: that was no attempt of theirs.
            kept_off = [server for server in refused if isinstance(problems[server], CalledOffError)]
            waiting, attempts = kept_off or refused, attempts + (not kept_off)
        return problems

    async def _unreachable(self, servers: Sequence[Server]) -> dict[Server, Exception]:
        checks = [
            self._client.get(server.instance.url, "/health", timeout=self._config.control_seconds) for server in servers
        ]
        results = await asyncio.gather(*checks, return_exceptions=True)
        return {
            server: result
            for server, result in zip(servers, results, strict=True)
            if isinstance(result, ServerError) and not isinstance(result, BadAnswerError)
        }

    async def _stage_once(self, servers: Sequence[Server], published: PublishedWeights) -> dict[Server, Exception]:
        """Stage once; return the failed servers with their errors."""
        routes = self._carrier.routes(
            published, [server.instance for server in servers], [server.capabilities.workers for server in servers]
        )
        absent: list[Server] = []
        sending = asyncio.create_task(asyncio.to_thread(self._carrier.send))

        async def stage(server: Server, route: WeightRoute) -> None:
            url, timeout = server.instance.url, self._config.weights_seconds
            try:
                await self._adapter.stage(self._client, url, published, route, timeout=timeout)
            except (ServerError, ArealError, OSError) as error:
                if not sending.done():  # else it fails because the transfer did
                    absent.append(server)
                    self._carrier.call_off(f"{server.where} does not take part: {error}")
                raise

        calls = [stage(server, route) for server, route in zip(servers, routes, strict=True)]
        results = await asyncio.gather(sending, *calls, return_exceptions=True)
        problems: dict[Server, Exception] = {}
        for server, result in zip(servers, results[1:], strict=True):
            if (
                isinstance(result, ServerRefusedError)
                and absent
                and server is not absent[0]
                and isinstance(results[0], EngineError)
            ):
                problems[server] = CalledOffError(str(result))
            elif isinstance(result, (ServerError, ArealError, OSError)):
                problems[server] = result
            elif isinstance(result, BaseException):
                raise result
        if isinstance(results[0], BaseException) and not problems:
            raise results[0]
        # After a transfer that broke off, nobody knows by what name a server keeps what it has verified.
        sent = SentWeights(identity="", num_bytes=0) if isinstance(results[0], BaseException) else self._carrier.sent()
        for server in servers:
            if server not in problems:
                server.staged = sent.identity if server.capabilities.deltas else ""
                self.tally["sent_bytes"] += sent.num_bytes
                self.tally["skipped_bytes"] += sent.skipped_bytes
        return problems

    async def _switch(self, server: Server, published: PublishedWeights, probe: Probe | None, *, paused: bool) -> bool:
        url, version = server.instance.url, published.manifest.version
        config = self._config
        server.changing = True
        try:
            for call in server.calls:
                call.mark_boundary()
            if server.asleep:
                await self._adapter.wake(self._client, url, "weights", timeout=config.control_seconds)
            elif not paused or not server.capabilities.keeps_requests:
                await self._pause(server)
            await self._adapter.switch(
                self._client,
                url,
                published,
                clear_cache=config.clear_cache and not server.asleep,
                timeout=config.weights_seconds,
            )
            if server.asleep:
                # After the weights, so that both never take memory while one of them is loaded.
                await self._adapter.wake(self._client, url, "kv_cache", timeout=config.control_seconds)
                await self._adapter.clear_cache(self._client, url, timeout=config.control_seconds)
                server.asleep = False
            if not paused:
                await self._resume(server)
                if probe is not None:
                    await self.check(server, probe)
            if paused and probe is not None:
                server.unprobed = version
            else:
                server.version, server.unprobed = version, None
            server.kept = server.staged
        except (ServerError, OSError) as error:
            self._give_up(server, str(error))
            return False
        finally:
            server.changing = False
        return True

    def _give_up(self, server: Server, reason: str) -> None:
        self.tally["weight_failures"] += 1
        _logger.warning("weights: %s", reason)
        self._failed(server, f"it failed to load new weights: {reason}")
