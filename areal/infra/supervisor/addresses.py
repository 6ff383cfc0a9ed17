"""Watches servers started elsewhere, at given addresses: which ones answer, and with which incarnation.

    pool = AddressPool(["http://node1:8000"], name="vllm", identify=..., health=..., release=..., config=config)

They are never started or stopped from here. A server that goes away is polled until it comes back as a new instance,
which receives weights before its first request like every new server. One thread per address does everything for it, as
in `supervisor`.
"""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Final

from areal.api import ArealError, ServerInstance
from areal.infra.supervisor.watch import Watch
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from areal.api import ServerListener
    from areal.infra.supervisor.config import SupervisorConfig

    Identify = Callable[[str, float], tuple[str, bool]]

_logger = getLogger(__name__)
_LONGEST_PAUSE_SECONDS: Final = 60.0
_REMIND_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 45.0
"""Longer than the lease of a trainer that has died and is restarted."""
_RELEASE_SECONDS: Final = 2.0


class AddressPool:
    """`areal.api.ServerPool` of servers with a life of their own.

    identify: (url, seconds) -> the server's incarnation, and whether it still serves this trainer; raises OSError when
    it cannot be reached, TimeoutError when it is busy, ArealError when it cannot be used. health: whether the server at
    a URL is healthy. release: tells the server that it is no longer needed. patience_seconds: how long one incarnation
    may fail to be admitted before it is given up.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        name: str,
        identify: Identify,
        health: Callable[[str, float], bool],
        release: Callable[[str, float], None],
        config: SupervisorConfig,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._release = release
        self._monitors = [
            AddressMonitor(
                f"{name}-{index}",
                url,
                identify=identify,
                health=health,
                config=config,
                patience_seconds=patience_seconds,
            )
            for index, url in enumerate(addresses)
        ]

    @property
    def size(self) -> int:
        """Number of addresses."""
        return len(self._monitors)

    @property
    def may_grow(self) -> bool:
        """False: the addresses are given. For a list that changes see `areal.infra.supervisor.discovery`."""
        return False

    def start(self, listener: ServerListener) -> None:
        """See `ServerPool.start`."""
        for monitor in self._monitors:
            monitor.start(listener)

    def evict(self, server: ServerInstance, reason: str) -> None:
        """See `ServerPool.evict`: it is ignored for a while, then admitted again."""
        for monitor in self._monitors:
            monitor.watch.evict(server, reason)

    def close(self) -> None:
        """Stop watching; the servers keep running. Idempotent."""
        for monitor in self._monitors:
            monitor.watch.request_stop()
        for monitor in self._monitors:
            if monitor.join():
                with contextlib.suppress(ArealError, OSError):
                    self._release(monitor.url, _RELEASE_SECONDS)


class AddressMonitor:
    """Polls one address: announces its server, watches it, and polls again once it is gone. See `AddressPool`."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        identify: Identify,
        health: Callable[[str, float], bool],
        config: SupervisorConfig,
        patience_seconds: float,
    ) -> None:
        self.watch, self.url = Watch(name), url
        self._identify, self._health, self._config = identify, health, config
        self._patience_seconds = patience_seconds
        self._refused: tuple[str, int, float] = ("", 0, 0.0)
        """Incarnation that could not be admitted, how often, and since when."""
        self._given_up = ""

        self._draining = False
        self._removed = ""

    def start(self, listener: ServerListener) -> None:
        """Start watching in a thread."""
        self.watch.start(self._run, listener)

    def drain(self) -> None:
        """Let the server finish its requests and send it no others; it is left alone when they are done."""
        self._draining = True
        self.watch.wake()

    def remove(self, reason: str) -> None:
        """Stop watching, soon; `listener` is notified that the server in use, if any, is gone."""
        self._removed = reason
        self.watch.request_stop()

    def join(self) -> bool:
        """Wait for the thread; return whether a server was in use until now."""
        return self.watch.join() and self.watch.instance is not None

    def _run(self, listener: ServerListener) -> None:
        while not self.watch.ending:
            instance = self._find()
            if instance is None:
                return
            begun = monotonic()
            reason, at_fault = self._use(listener, instance)
            if self.watch.ending:
                return
            self.watch.leave()
            if self._draining:
                return
            lasted = monotonic() - begun > self._config.restart_reset_seconds
            if at_fault and not lasted:
                self._refuse(listener, instance.incarnation, reason)
            else:
                self._refused = ("", 0, 0.0)
                _logger.warning("%s (%s): %s", self.watch.name, self.url, reason)

    def _find(self) -> ServerInstance | None:
        """Wait for a server; None when asked to end."""
        reminded = -_REMIND_SECONDS
        while not self.watch.ending and not self._draining:
            try:
                incarnation, _ = self._identify(self.url, self._config.health_timeout_seconds)
            except (ArealError, OSError) as error:
                if monotonic() - reminded > _REMIND_SECONDS:
                    reminded = monotonic()
                    _logger.warning("waiting for %s at %s: %s", self.watch.name, self.url, error)
            else:
                if incarnation != self._given_up:
                    instance = ServerInstance(name=self.watch.name, incarnation=incarnation, url=self.url)
                    self.watch.enter(instance)
                    return instance
            self.watch.pause(self._config.poll_seconds)
        return None

    def _use(self, listener: ServerListener, instance: ServerInstance) -> tuple[str, bool]:
        """Use the server from admission to its end; return why it ended, and whether this incarnation is to blame."""
        try:
            listener.server_up(instance)
        except (ArealError, OSError) as error:
            return str(error), True
        self._given_up = ""
        _logger.info("%s is in use at %s (incarnation %s)", self.watch.name, self.url, instance.incarnation)
        reason, at_fault = self._watch(instance)
        if self._draining and not self.watch.ending:
            listener.server_draining(instance)
            reason = "it was drained"
        if not self.watch.ending or self._removed:
            listener.server_down(instance, self._removed or reason)
        return reason, at_fault

    def _watch(self, instance: ServerInstance) -> tuple[str, bool]:
        missed = 0
        while not self.watch.ending:
            self.watch.pause(self._config.poll_seconds)
            if self.watch.evicted is not None:
                return f"evicted: {self.watch.evicted}", True
            if self._draining:
                return "it is drained", False
            try:
                incarnation, is_ours = self._identify(self.url, self._config.health_timeout_seconds)
            except ConnectionRefusedError as error:
                # Nobody listens: it has ended, and what will listen there next has other weights.
                return f"it is gone: {error}", False
            except (ArealError, OSError) as error:
                missed = 0 if isinstance(error, TimeoutError) and self._is_healthy() else missed + 1
                if missed >= self._config.max_missed_health_checks:
                    return f"hangs: {missed} questions in a row were not answered, the last one with {error}", True
                continue
            missed = 0
            if incarnation != instance.incarnation:
                return f"it was started again (incarnation {incarnation})", False
            if not is_ours:
                return "another trainer has taken it over", True
        return "closed", False

    def _refuse(self, listener: ServerListener, incarnation: str, reason: str) -> None:
        """Handle a server that could not be used: pause, longer each time; finally wait until it is restarted."""
        before, count, since = self._refused
        if before != incarnation:
            count, since = 0, monotonic()
        count += 1
        self._refused = (incarnation, count, since)
        if count > self._config.max_restarts and monotonic() - since >= self._patience_seconds:
            self._given_up = incarnation
            listener.server_retired(
                self.watch.name, f"{self.url}: {reason}; tried {count} times, and not again until it is started anew"
            )
            return
        pause = min(self._config.restart_pause_seconds * 2 ** (count - 1), _LONGEST_PAUSE_SECONDS)
        _logger.warning("%s (%s): %s; tried again in %.0f s", self.watch.name, self.url, reason, pause)
        self.watch.pause(pause)

    def _is_healthy(self) -> bool:
        try:
            return self._health(self.url, self._config.health_timeout_seconds)
        except (ArealError, OSError):
            return False
