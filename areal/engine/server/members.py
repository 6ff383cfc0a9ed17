"""Manages the life of the servers in an engine: admission with the current weights, failures, removal, joint updates.

Runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from areal.api import EngineError
from areal.engine.server.checks import check_settings
from areal.engine.server.errors import ConnectionFailedError, ReplacedError, ServerError, StalledError
from areal.engine.server.fleet import Fleet, Server
from areal.engine.server.named_adapters import NamedAdapters
from areal.engine.server.updates import WeightUpdater
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from pathlib import Path

    from areal.api import PublishedWeights, ServerInstance, ServerPool, WeightCarrier
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import Capabilities, ServerAdapter
    from areal.engine.server.client import ServerClient
    from areal.engine.server.updates import Probe

_logger = getLogger(__name__)
_DRAIN_POLL_SECONDS: Final = 0.05


class ServerMembers:
    """All servers of an engine and their target version.

    tally: counters of the engine, updated here. context: longest sequence that will be requested. records_routes:
    whether servers have to report what routers choose. probe: None when there is nothing to compare with.
    """

    def __init__(
        self,
        *,
        adapter: ServerAdapter,
        client: ServerClient,
        pool: ServerPool,
        carrier: WeightCarrier,
        config: ServerEngineConfig,
        tally: dict[str, float],
        context: int,
        records_routes: bool,
        published: PublishedWeights,
        probe: Probe | None,
    ) -> None:
        self._adapter, self._client, self._pool, self._carrier = adapter, client, pool, carrier
        self._config, self.tally, self._context = config, tally, context
        self._records_routes = records_routes
        self._published, self._probe = published, probe
        self.fleet = Fleet(config)
        self.updater = WeightUpdater(adapter=adapter, client=client, carrier=carrier, config=config, failed=self.evict)
        self.named = NamedAdapters(adapter=adapter, client=client, config=config, evict=self.evict)
        """Adapters beside the weights."""
        self._tidying: asyncio.Task[None] | None = None
        # One change of adapters at a time. It waits for generations, which a change of weights must never have to.
        self._changing_adapters = asyncio.Lock()
        # One change of weights, or of paused and running, at a time; servers that come up wait for it.
        self._lock = asyncio.Lock()
        self._joining: dict[Server, asyncio.Future[None]] = {}
        """Servers that wait for the next version."""
        self.asleep = False
        """Whether the servers' devices are lent to the learner."""
        self._no_update_in_progress = asyncio.Event()
        self._no_update_in_progress.set()

    @property
    def version(self) -> int:
        """Version that all servers have; during an update some may already have a newer one."""
        return self._published.manifest.version

    # ---- for requests

    async def settled(self) -> int:
        """Wait until no weight update is in progress; return the version."""
        await self._no_update_in_progress.wait()
        return self.version

    def is_hopeless(self) -> bool:
        """Whether no server is left and none will come."""
        return not self._pool.may_grow and len(self.fleet.retired) >= self._pool.size

    def server_failed(self, server: Server, error: ServerError) -> None:
        """Record a failed call. A stalled or replaced server is evicted at once, others after several consecutive
        errors."""
        if not server.alive:
            return
        server.errors_in_a_row += 1
        if (
            isinstance(error, (ReplacedError, StalledError))
            or server.errors_in_a_row >= self._config.max_consecutive_errors
        ):
            self.evict(server, str(error))
        elif isinstance(error, ConnectionFailedError) and server.serving:
            # It may be gone: no further requests until it answers.
            server.serving = False
            asyncio.ensure_future(self._check_alive(server))  # noqa: RUF006 - short, and cancelled with the loop

    # ---- life of servers

    async def admit(self, instance: ServerInstance) -> None:
        """Admit a server that has just become healthy: ask what it can do, send it the weights, let requests in.

        Raises EngineError or ServerError when the server cannot be used.
        """
        capabilities = await self._identify(instance)
        check_settings(
            capabilities,
            self._config,
            context=self._context,
            records_routes=self._records_routes,
            where=instance.url,
        )
        if self._published.base is not None and not capabilities.adapters:
            raise EngineError(
                f"{instance.url} takes no adapters, only whole weights: it was started with an older version of this "
                f"program's extension; start it again, or set weights.adapters=merged"
            )
        server = Server(instance=instance, capabilities=capabilities, version=-1, base=capabilities.base)
        if self._config.sleep_level:
            # It starts so, or a learner that died left it so; the first version wakes it.
            asleep = await self._adapter.is_asleep(self._client, instance.url, timeout=self._config.control_seconds)
            server.asleep = self._config.sleep_learner if asleep is None else asleep
        async with self._lock:
            if self._carrier.can_send(self._published) and not self.asleep:
                try:
                    if not await self.updater.push([server], self._published, self._probe, paused=False):
                        raise EngineError(f"{server.where} did not take weights of version {self.version}")
                    return await self._let_in(server)
                except EngineError:
                    if self._carrier.can_send(self._published):
                        raise
        # Nobody has the weights of this version any more, or the learner is at work on the devices.
        _logger.info("%s gets the next version, before its first request", server.where)
        joined = self._joining[server] = asyncio.get_running_loop().create_future()
        try:
            await joined
        finally:
            del self._joining[server]

    async def _let_in(self, server: Server) -> None:
        """Send requests to a server that has the weights. Raises ServerError when it does not take the adapters."""
        await self.named.bring(server)
        if self.fleet.paused:
            await self._pause_one(server)
        server.serving = True
        self.fleet.servers[server.instance.name] = server
        self.fleet.retired.pop(server.instance.name, None)
        self.tally["starts"] += 1
        self.fleet.changed()

    def close(self) -> None:
        """Admit no further servers."""
        for joined in self._joining.values():
            if not joined.done():
                joined.set_exception(EngineError("the engine is closed"))

    async def _identify(self, instance: ServerInstance) -> Capabilities:
        """Ask what the server can do. Raises EngineError when it is not the expected one."""
        capabilities = await self._adapter.probe(self._client, instance.url, timeout=self._config.control_seconds)
        if capabilities.incarnation and capabilities.incarnation != instance.incarnation:
            raise EngineError(
                f"{instance.url} is answered by incarnation {capabilities.incarnation}, expected "
                f"{instance.incarnation}: another process has that port"
            )
        return capabilities

    async def remove(self, instance: ServerInstance, reason: str) -> None:
        """Handle the end of an instance, as reported by the pool."""
        server = self.fleet.find(instance)
        if server is not None:
            self.fleet.drop(server)
            self.tally["evictions"] += 1
            _logger.warning("%s is gone: %s", server.where, reason)

    async def drain(self, instance: ServerInstance) -> None:
        """Let a server finish its requests, for at most drain_seconds; what is left then goes on elsewhere."""
        server = self.fleet.find(instance)
        if server is None:
            return
        server.draining, server.serving = True, False
        _logger.info("%s is drained: %d requests are left in it", server.where, len(server.calls))
        deadline = time.monotonic() + self._config.drain_seconds
        while server.calls and server.alive and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    async def retire(self, name: str, reason: str) -> None:
        """Record that the pool will not restart this server."""
        _logger.error("%s will not come back: %s", name, reason)
        self.fleet.retired[name] = reason
        self.fleet.changed()

    def evict(self, server: Server, reason: str) -> None:
        """Evict a server: it receives no further requests, and the pool stops and restarts it."""
        if server.alive:
            if self.fleet.find(server.instance) is server:
                self.tally["evictions"] += 1
            self.fleet.drop(server)
            self._pool.evict(server.instance, reason)

    async def wait_ready(self, wanted: int, timeout: float) -> None:
        """Wait until `count` servers accept requests. Raises EngineError on timeout."""
        try:
            async with asyncio.timeout(timeout):
                while len(self.fleet.serving) < wanted:
                    if not self._pool.may_grow and self._pool.size - len(self.fleet.retired) < wanted:
                        raise EngineError(f"inference servers cannot be started:\n{self.fleet.retirement_reasons}")
                    await self.fleet.wait_changed(timeout)
        except TimeoutError:
            ready = len(self.fleet.serving)
            raise EngineError(f"{ready} of {wanted} inference servers were ready after {timeout:g} s") from None

    async def _check_alive(self, server: Server) -> None:
        try:
            await self._client.get(server.instance.url, "/health", timeout=self._config.control_seconds / 6)
            await self._identify(server.instance)
        except (EngineError, ServerError) as error:
            self.evict(server, str(error))
        else:
            if server.alive and not server.draining:
                server.serving = True
                self.fleet.changed()

    # ---- all servers together

    async def update(self, published: PublishedWeights, probe: Probe | None) -> None:
        """Update all serving servers to a version; servers that come up later get it too. Raises EngineError."""
        async with self._lock:
            self._no_update_in_progress.clear()
            try:
                joining = list(self._joining)
                done = await self.updater.push(
                    [*self.fleet.present, *joining], published, probe, paused=self.fleet.paused and not self.asleep
                )
                if self.asleep:
                    self.asleep = self.fleet.paused = False
                    self.fleet.changed()
                if not done and self.is_hopeless():
                    raise EngineError(f"no server is left to take weights of version {published.manifest.version}")
                self._published, self._probe = published, probe
                for server in joining:
                    await self._join_in(server, server in done)
            finally:
                self._carrier.keep_only(self.version)
                self._no_update_in_progress.set()

    async def _join_in(self, server: Server, has_weights: bool) -> None:
        """Admit a server that waited for a version, or not."""
        joined = self._joining.get(server)
        if joined is None or joined.done():
            return
        if not has_weights:
            joined.set_exception(EngineError(f"{server.where} did not take weights"))
            return
        try:
            await self._let_in(server)
        except ServerError as error:
            joined.set_exception(EngineError(f"{server.where} did not take adapters: {error}"))
        else:
            joined.set_result(None)

    # ---- adapters beside the weights

    async def load_adapter(self, name: str, folder: Path) -> None:
        """See `NamedAdapters.load`; servers that come while it waits for generations are admitted."""
        async with self._changing_adapters:
            await self.named.prepare(name, folder)
            async with self._lock:
                await self.named.load(name, folder, self.fleet.present)

    async def unload_adapter(self, name: str) -> None:
        """See `NamedAdapters.retract`."""
        async with self._changing_adapters:
            await self.named.retract(name)
            await self._tidy()

    async def unload_all(self) -> None:
        """Leave no adapter on servers that outlive the engine."""
        async with self._changing_adapters, self._lock:
            await self.named.leave(self.fleet.present)

    def adapter_left(self) -> None:
        """Unload what a generation that has ended was the last to use, when nothing else is being changed."""
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.ensure_future(self._tidy())

    async def _tidy(self) -> None:
        async with self._lock:
            await self.named.tidy(self.fleet.present)

    async def sleep(self, level: int) -> None:
        """Free the devices of all servers; requests wait until `update` has woken them. Raises EngineError."""
        async with self._lock:
            self._require_awake("put them to sleep")
            self.fleet.paused = self.asleep = True
            await asyncio.gather(*(self._sleep_one(server, level) for server in self.fleet.present))

    async def _sleep_one(self, server: Server, level: int) -> None:
        url, timeout = server.instance.url, self._config.control_seconds
        # Requests are cut, and go on with their tokens after the update: what was cached for them is lost.
        cut = replace(server.capabilities, keeps_requests=False)
        try:
            await self._adapter.pause(self._client, url, capabilities=cut, timeout=timeout)
            await self._adapter.sleep(self._client, url, level=level, timeout=timeout)
            server.asleep = True
            if level > 1:
                server.kept = ""  # its weights are dropped: only a whole version brings them back
        except ServerError as error:
            self.evict(server, f"it does not sleep: {error}")

    def _require_awake(self, what: str) -> None:
        if self.asleep:
            raise EngineError(f"cannot {what}: the servers are asleep, and only update_weights wakes them")

    async def pause(self) -> None:
        """Return once no token is being computed. Idempotent."""
        async with self._lock:
            self._require_awake("pause them")
            if not self.fleet.paused:
                self.fleet.paused = True
                await asyncio.gather(*map(self._pause_one, self.fleet.present))

    async def resume(self) -> None:
        """Undo `pause`. Idempotent."""
        async with self._lock:
            self._require_awake("resume them")
            if not self.fleet.paused:
                return
            self._no_update_in_progress.clear()
            try:
                await asyncio.gather(*map(self._resume_one, self.fleet.present))
                self.fleet.paused = False
            finally:
                self._no_update_in_progress.set()
                self.fleet.changed()

    async def abort(self, calls: dict[Server, list[str]]) -> None:
        """End calls on their servers."""
        for server, call_ids in calls.items():
            try:
                await self._adapter.abort(
                    self._client, server.instance.url, call_ids, timeout=self._config.control_seconds
                )
            except ServerError as error:
                _logger.warning("%s: %d requests could not be aborted: %s", server.where, len(call_ids), error)
                self.server_failed(server, error)

    async def _pause_one(self, server: Server) -> None:
        try:
            await self._adapter.pause(
                self._client,
                server.instance.url,
                capabilities=server.capabilities,
                timeout=self._config.control_seconds,
            )
        except ServerError as error:
            self.evict(server, f"it cannot be paused: {error}")

    async def _resume_one(self, server: Server) -> None:
        try:
            await self._adapter.resume(self._client, server.instance.url, timeout=self._config.control_seconds)
            if server.unprobed is not None:
                if self._probe is not None:
                    await self.updater.check(server, self._probe)
                server.version, server.unprobed = server.unprobed, None
        except ServerError as error:
            self.evict(server, f"it cannot be resumed: {error}")
