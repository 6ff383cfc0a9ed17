"""Tracks the servers of an engine and chooses one for each request.

Everything here runs on the engine's loop. The pool starts and stops processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from areal.api import EngineError, FaultError, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from areal.api import ServerInstance
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import Capabilities
    from areal.engine.server.generation import CallProgress


@dataclass(slots=True, eq=False)
class Server:
    """One server instance that has answered."""

    instance: ServerInstance
    capabilities: Capabilities
    version: int
    """Version of the weights in use; tokens labelled with it are verified."""
    base: str = ""
    """Identity of the base model it holds for adapters."""
    kept: str = ""
    """Identity of the version that its workers keep, on top of which the next one may be sent."""
    staged: str = ""
    """The same of the version that it has staged."""
    serving: bool = False
    """Whether it receives requests."""
    alive: bool = True
    """False once the pool has reported its end or it was evicted."""
    draining: bool = False
    """Whether it only finishes the requests it has."""
    asleep: bool = False
    """Whether its device is lent to the learner: only a complete update wakes it."""
    changing: bool = False
    """True during a weight update of this server."""
    unprobed: int | None = None
    """Version in use that has not been probed yet because the engine is paused."""
    calls: set[CallProgress] = field(default_factory=set)
    errors_in_a_row: int = 0
    last_token_at: float = field(default_factory=time.monotonic)

    @property
    def where(self) -> str:
        """Name, address and incarnation, for messages."""
        return f"{self.instance.name} ({self.instance.url}, incarnation {self.instance.incarnation})"


class Fleet:
    """Servers by name, and the requests waiting for one."""

    def __init__(self, config: ServerEngineConfig) -> None:
        self._config = config
        self.servers: dict[str, Server] = {}
        self.retired: dict[str, str] = {}
        """Name to reason, for servers that will not come back."""
        self.paused = False
        self._changed = asyncio.Event()

    @property
    def present(self) -> list[Server]:
        """All servers that have not been evicted, including those that receive no requests while their health is
        checked."""
        return list(self.servers.values())

    @property
    def serving(self) -> list[Server]:
        """The servers that receive requests."""
        return [server for server in self.servers.values() if server.serving]

    def find(self, instance: ServerInstance) -> Server | None:
        """Return the server of exactly this instance; None when it was restarted or is gone."""
        server = self.servers.get(instance.name)
        return server if server is not None and server.instance == instance else None

    def changed(self) -> None:
        """Wake requests that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def drop(self, server: Server) -> None:
        """Remove a server: it receives no further requests."""
        server.alive = server.serving = False
        if self.servers.get(server.instance.name) is server:
            del self.servers[server.instance.name]
        self.changed()

    async def wait_changed(self, timeout: float) -> None:
        """Wait for the next change, at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)

    async def acquire(
        self,
        prefix: Sequence[int | str],
        *,
        avoid: Collection[str],
        is_hopeless: Callable[[], bool],
        given_up: Callable[[], bool],
    ) -> Server | None:
        """Return a server for a request with this prompt; wait until one is ready and the engine is not paused.

        avoid: incarnations that failed this request; used only if there is no other. given_up: polled after every
        change; None is returned once it is true. Raises EngineError when no server will ever come back (is_hopeless),
        FaultError when none was ready in time.
        """
        deadline = time.monotonic() + self._config.wait_seconds
        while not given_up():
            if not self.paused and (server := self.choose(prefix, avoid=avoid)) is not None:
                return server
            if is_hopeless():
                raise EngineError(f"no inference server is left:\n{self.retirement_reasons}")
            if self.paused:
                deadline = time.monotonic() + self._config.wait_seconds
            elif time.monotonic() > deadline:
                raise FaultError(
                    FaultKind.GENERATION_FAILED, f"no inference server was ready within {self._config.wait_seconds:g} s"
                )
            await self.wait_changed(max(deadline - time.monotonic(), 0.01))
        return None

    @property
    def retirement_reasons(self) -> str:
        """The reason why each retired server is gone, one per line."""
        return "\n".join(f"{name}: {reason}" for name, reason in self.retired.items())

    def choose(self, prefix: Sequence[int | str], *, avoid: Collection[str] = ()) -> Server | None:
        """Return the least loaded server, or the one that likely has the prompt cached if it is nearly as free."""
        ready = self.serving
        candidates = [server for server in ready if server.instance.incarnation not in avoid] or ready
        if not candidates:
            return None
        least = min(candidates, key=lambda server: len(server.calls))
        if not self._config.affinity_tokens:
            return least
        # Rendezvous hashing: when a server goes, only its own prompts move.
        key = repr(prefix[: self._config.affinity_tokens])
        preferred = max(candidates, key=lambda server: _weight(key, server.instance.name))
        nearly_free = len(preferred.calls) <= len(least.calls) + self._config.affinity_slack
        return preferred if nearly_free else least


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{name}/{key}".encode(), digest_size=8).digest()
