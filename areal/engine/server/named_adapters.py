"""Adapters that servers hold beside the weights in use, by name: each request says which one it is computed with.

    engine.load_adapter("judge", Path("runs/judge/final"))       # a PEFT folder that the servers see
    await engine.agenerate(ModelRequest(input_ids=ids, gconfig=gconfig, adapter="judge"))
    engine.load_adapter("judge", Path("runs/judge/later"))       # requests that run finish with the one before
    engine.unload_adapter("judge")

A generation keeps the adapter that it began with. One that was superseded or unloaded leaves the servers when its last
generation has ended, so that they never hold more than two per name, and 2 x servers.max_adapters in all. Runs on the
engine's loop; changes are made one at a time by `ServerMembers`.

Servers may outlive the engine, and one that was lost may come back as it was. So names on servers are never those of
another engine, and a server that joins is given everything anew. An engine that ends unloads what it has loaded; what
one that died has left is unloaded by the next one that the server belongs to.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError, EngineError, FaultError, FaultKind
from areal.engine.server.errors import BadStatusError, ServerError, ServerRefusedError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import ServerAdapter
    from areal.engine.server.client import ServerClient
    from areal.engine.server.fleet import Server

_logger = getLogger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_SERVED: Final = re.compile(_NAME.pattern + r"\.[0-9]+\.[0-9a-f]{8}")
"""Name on servers: the adapter's, which content it is, and a random part of the engine that loaded it."""
_FILE: Final = "adapter_config.json"
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True, eq=False)
class _Loaded:
    """One content of a name. No content is loaded twice under the same served name: caches of servers go by that."""

    name: str
    served: str
    """Name on the servers."""
    folder: str
    users: int = 0
    """Generations that began with it and have not ended."""
    leaving: bool = False
    """Superseded or unloaded: no generation begins with it."""


class NamedAdapters:
    """What is loaded, and who uses it. evict: ends a server that does not do what it is asked."""

    def __init__(
        self,
        *,
        adapter: ServerAdapter,
        client: ServerClient,
        config: ServerEngineConfig,
        evict: Callable[[Server, str], None],
    ) -> None:
        self._adapter, self._client, self._config, self._evict = adapter, client, config, evict
        self._held: list[_Loaded] = []
        """All that servers have, those that are leaving included."""
        self._number, self._life = 0, secrets.token_hex(4)

    @property
    def names(self) -> list[str]:
        """Those that requests may ask for."""
        return [one.name for one in self._held if not one.leaving]

    @contextmanager
    def used(self, name: str) -> Iterator[str]:
        """Hold the present content of a name; yields its name on the servers, empty for no adapter.

        Raises FaultError(DATA_INVALID) for a name that is not loaded.
        """
        found = next((one for one in self._held if one.name == name and not one.leaving), None)
        if found is None:
            if name:
                known = ", ".join(self.names) or "none"
                raise FaultError(FaultKind.DATA_INVALID, f"no adapter {name!r} is loaded on the servers, only {known}")
            yield ""
            return
        found.users += 1
        try:
            yield found.served
        finally:
            found.users -= 1

    async def prepare(self, name: str, folder: Path) -> None:
        """Wait until `load` may be called: a name has at most two contents.

        Raises ConfigError for what can never be loaded, EngineError when an older content is still in use after
        servers.drain_seconds.
        """
        self._check(name, folder)
        await self._unused([one for one in self._held if one.name == name and one.leaving], "load_adapter")

    async def load(self, name: str, folder: Path, servers: Sequence[Server]) -> None:
        """Load a folder under a name on all servers, in place of what had the name.

        Raises EngineError when servers refuse it; the name keeps its content then.
        """
        await self.tidy(servers)
        self._number += 1
        new = _Loaded(name=name, served=f"{name}.{self._number}.{self._life}", folder=str(folder.absolute()))
        errors = await self._everywhere(servers, partial(self._load_one, new))
        if servers and len(errors) == len(servers):
            raise EngineError(
                f"adapter {name!r} was refused by every server: {next(iter(errors.values()))}",
                where=new.folder,
                fix="see that it fits the model, servers.max_adapter_rank, and that the servers see the folder",
            )
        for server, error in errors.items():
            self._evict(server, f"it does not load adapter {name!r}: {error}")
        before = [one for one in self._held if one.name == name]
        for one in before:
            one.leaving = True
        self._held.append(new)
        await self._drop([one for one in before if not one.users], servers)

    async def retract(self, name: str) -> None:
        """Take a name back, and wait until generations that use it have ended; `tidy` unloads it. Raises ConfigError
        for a name that is not loaded, EngineError when they do not end within servers.drain_seconds."""
        found = [one for one in self._held if one.name == name]
        if name not in self.names:
            raise ConfigError(f"no adapter {name!r} is loaded, only {', '.join(self.names) or 'none'}")
        for one in found:
            one.leaving = True
        await self._unused(found, "unload_adapter")

    async def tidy(self, servers: Sequence[Server]) -> None:
        """Unload what is leaving and has no user any more, also what loses its last one meanwhile."""
        while unused := [one for one in self._held if one.leaving and not one.users]:
            await self._drop(unused, servers)

    async def leave(self, servers: Sequence[Server]) -> None:
        """Unload everything, as the engine ends and generations with it."""
        await self._drop(list(self._held), servers)

    async def bring(self, server: Server) -> None:
        """Load everything on a server that joins, which may have it from before it was lost, and unload what engines
        have left there that had it before: the server is held by this one now. Raises ServerError."""
        if not self._config.max_adapters:
            return
        url, seconds = server.instance.url, self._config.control_seconds
        for served in await self._adapter.adapters(self._client, url, timeout=seconds):
            if _SERVED.fullmatch(served) and not served.endswith(self._life):
                _logger.info("%s has adapter %s of another run, which is unloaded", server.where, served)
                with suppress(BadStatusError, ServerRefusedError):
                    await self._adapter.unload_adapter(self._client, url, served, timeout=seconds)
        for one in self._held:
            try:
                await self._load_one(one, server)
            except (BadStatusError, ServerRefusedError):
                with suppress(ServerError):
                    await self._unload_one(one, server)
                await self._load_one(one, server)

    def _check(self, name: str, folder: Path) -> None:
        limit = self._config.max_adapters
        if not limit:
            raise ConfigError("servers.max_adapters is 0: servers were started without room for adapters; set it")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"adapter name {name!r} is not 1 to 63 letters, digits, '_' and '-'")
        if not (folder / _FILE).is_file():
            raise ConfigError(f"{folder} has no {_FILE}; expected a folder that `peft` wrote")
        if name not in self.names and len(self.names) >= limit:
            raise ConfigError(
                f"servers.max_adapters is {limit}, and {', '.join(self.names)} are loaded; unload one, or raise it"
            )

    async def _unused(self, loaded: Sequence[_Loaded], what: str) -> None:
        """Wait for users of contents that are leaving."""
        try:
            async with asyncio.timeout(self._config.drain_seconds):
                while any(one.users for one in loaded):
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            busy = next(one for one in loaded if one.users)
            raise EngineError(
                f"{what}: {busy.users} generations still use an older content of adapter {busy.name!r} after "
                f"{self._config.drain_seconds:g} s",
                where="servers.drain_seconds",
                fix="wait for them, abort them, or raise servers.drain_seconds",
            ) from None

    async def _drop(self, loaded: Sequence[_Loaded], servers: Sequence[Server]) -> None:
        for one in loaded:
            self._held.remove(one)
            failed = await self._everywhere(servers, partial(self._unload_one, one))
            for server, error in failed.items():
                _logger.warning("%s keeps adapter %s: %s", server.where, one.served, error)

    async def _load_one(self, one: _Loaded, server: Server) -> None:
        await self._adapter.load_adapter(
            self._client, server.instance.url, one.served, one.folder, timeout=self._config.weights_seconds
        )

    async def _unload_one(self, one: _Loaded, server: Server) -> None:
        await self._adapter.unload_adapter(
            self._client, server.instance.url, one.served, timeout=self._config.control_seconds
        )

    @staticmethod
    async def _everywhere(
        servers: Sequence[Server], call: Callable[[Server], Awaitable[None]]
    ) -> dict[Server, ServerError]:
        """Call all servers together; return those that failed."""
        results = await asyncio.gather(*map(call, servers), return_exceptions=True)
        failed = {}
        for server, result in zip(servers, results, strict=True):
            if isinstance(result, ServerError):
                failed[server] = result
            elif isinstance(result, BaseException):
                raise result
        return failed
