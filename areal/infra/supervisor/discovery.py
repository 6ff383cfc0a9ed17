"""Follows servers that announce themselves: they join, are drained, change their address and leave while a run goes on.

    pool = DirectoryPool(lambda: directory.entries("server"), identify=..., health=..., ...)

An announcement is {"url": "http://HOST:PORT"}, with "draining": true once the server accepts no further requests. Each
server is watched as one at a given address (`areal.infra.supervisor.addresses`), so it receives weights before its
first request, and a server that ends is noticed at once, long before its lease ends.
"""

from __future__ import annotations

import contextlib
import re
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError
from areal.infra.supervisor.addresses import PATIENCE_SECONDS, AddressMonitor
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.api import ServerInstance, ServerListener
    from areal.infra.supervisor.addresses import Identify
    from areal.infra.supervisor.config import SupervisorConfig

_logger = getLogger(__name__)
_URL: Final = re.compile(r"http://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_MISSING_SECONDS: Final = 30.0
"""How long a server that answers may be missing from the list: a directory that was started again is empty until the
next renewals."""
_RELEASE_SECONDS: Final = 2.0


class DirectoryPool:
    """`areal.api.ServerPool` of the servers in a list that changes.

    listed: returns name (its place in the fleet) to announcement; while it raises ArealError, the servers known so far
    stay. Other arguments: as those of `AddressPool`.
    """

    def __init__(
        self,
        listed: Callable[[], Mapping[str, Mapping[str, Any]]],
        *,
        identify: Identify,
        health: Callable[[str, float], bool],
        release: Callable[[str, float], None],
        config: SupervisorConfig,
        patience_seconds: float = PATIENCE_SECONDS,
        missing_seconds: float = _MISSING_SECONDS,
    ) -> None:
        self._listed, self._release, self._config = listed, release, config
        self._identify, self._health = identify, health
        self._patience_seconds, self._missing_seconds = patience_seconds, missing_seconds
        self._members: dict[str, AddressMonitor] = {}
        self._missing: dict[str, float] = {}
        """Since when a member has not been in the list."""
        self._leaving: list[AddressMonitor] = []
        self._refused: set[str] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def size(self) -> int:
        """Number of servers in the list."""
        with self._lock:
            return len(self._members)

    @property
    def may_grow(self) -> bool:
        """True."""
        return True

    def start(self, listener: ServerListener) -> None:
        """See `ServerPool.start`."""
        self._thread = threading.Thread(target=self._follow, args=(listener,), name="areal-servers", daemon=True)
        self._thread.start()

    def evict(self, server: ServerInstance, reason: str) -> None:
        """See `ServerPool.evict`: it is ignored for a while, then admitted again."""
        with self._lock:
            members = [*self._members.values(), *self._leaving]
        for member in members:
            member.watch.evict(server, reason)

    def close(self) -> None:
        """Stop watching; the servers keep running. Idempotent."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        members, self._members = list(self._members.values()), {}
        for member in members:
            member.watch.request_stop()
        for member in (*members, *self._leaving):
            if member.join():
                self._let_go(member)

    def _follow(self, listener: ServerListener) -> None:
        reachable = True
        while not self._end.is_set():
            try:
                listed = {name: self._announced(name, value) for name, value in self._listed().items()}
            except ArealError as error:
                if reachable:
                    _logger.warning("the list of servers is out of reach, %d stay in use: %s", self.size, error)
                reachable = False
            else:
                reachable = True
                self._apply({name: value for name, value in listed.items() if value is not None}, listener)
            self._end.wait(self._config.poll_seconds)

    def _apply(self, listed: Mapping[str, tuple[str, bool]], listener: ServerListener) -> None:
        """Bring the members in line with the list: name to address and whether it is draining."""
        for member in [one for one in self._leaving if not one.watch.running]:
            self._leaving.remove(member)
            self._let_go(member)
        for name in [name for name in self._members if name not in listed]:
            since = self._missing.setdefault(name, monotonic())
            if self._members[name].watch.instance is None or monotonic() - since >= self._missing_seconds:
                self._part(name, "it is not in the list of servers any more")
        for name, (url, draining) in listed.items():
            self._missing.pop(name, None)
            if name in self._members and self._members[name].url != url:
                self._part(name, f"its address is now {url}")
            if draining and name in self._members:
                with self._lock:
                    member = self._members.pop(name)
                    self._leaving.append(member)
                member.drain()
            elif not draining and name not in self._members and not self._is_leaving(name):
                self._join(name, url, listener)

    def _join(self, name: str, url: str, listener: ServerListener) -> None:
        member = AddressMonitor(
            name,
            url,
            identify=self._identify,
            health=self._health,
            config=self._config,
            patience_seconds=self._patience_seconds,
        )
        with self._lock:
            self._members[name] = member
        _logger.info("%s at %s is in the list of servers", member.watch.name, url)
        member.start(listener)

    def _part(self, name: str, reason: str) -> None:
        with self._lock:
            member = self._members.pop(name)
            self._leaving.append(member)
        self._missing.pop(name, None)
        member.remove(reason)

    def _is_leaving(self, name: str) -> bool:
        """Whether an earlier member of that name has not ended yet: two of one name would be taken for each other."""
        return any(member.watch.name == name for member in self._leaving)

    def _let_go(self, member: AddressMonitor) -> None:
        with contextlib.suppress(ArealError, OSError):
            self._release(member.url, _RELEASE_SECONDS)

    def _announced(self, name: str, value: Mapping[str, Any]) -> tuple[str, bool] | None:
        """Return the address and whether it is draining; None, with a warning, for what is not an announcement."""
        url = value.get("url")
        if isinstance(url, str) and _URL.fullmatch(url):
            return url, value.get("draining") is True
        if name not in self._refused:
            self._refused.add(name)
            _logger.warning("server %s announces the address %.100r, expected http://HOST:PORT", name, url)
        return None
