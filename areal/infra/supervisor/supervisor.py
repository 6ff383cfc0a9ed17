"""Starts server processes, watches them, and restarts them a bounded number of times when they die or hang.

    supervisor = LocalSupervisor(["vllm-0", "vllm-1"], command_of, health=is_healthy, config=config, log_folder=folder)
    supervisor.start(listener)      # returns at once; listener.server_up(instance) when a server is ready
    supervisor.evict(instance, "no token for 60 s")
    supervisor.close()

One thread per server runs all its processes, so the order of events of one server is the order of the code below. It
does not know what servers do: commands and health checks are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from areal.api import ArealError, ServerInstance
from areal.infra.supervisor.device_lock import OWN_DEVICE, DeviceLock
from areal.infra.supervisor.process import ServerProcess, free_port, keep_newest, new_incarnation
from areal.infra.supervisor.watch import Watch
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from areal.api import ServerListener
    from areal.infra.supervisor.config import SupervisorConfig
    from areal.infra.supervisor.device_lock import StartOnDevice

_logger = getLogger(__name__)
_LONGEST_PAUSE_SECONDS = 60.0
_HOST = "127.0.0.1"
_DEATH_SECONDS = 3.0
"""How long a server that has just died, and answers no more, may not be known to be dead: so long it does not hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """Command of one start of one server."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""


class LocalSupervisor:
    """`areal.api.ServerPool` of processes on this machine.

    command_of: called for every start with the server's index and a free port. health: whether the server at a URL is
    ready for requests; an OSError means that it is not. device: every start waits for it.
    """

    def __init__(
        self,
        names: Sequence[str],
        command_of: Callable[[int, int], ServerCommand],
        *,
        health: Callable[[str, float], bool],
        config: SupervisorConfig,
        log_folder: Path,
        device: StartOnDevice = OWN_DEVICE,
    ) -> None:
        self._config = config
        self._servers = [
            _SupervisedServer(
                name, index, command_of, health=health, config=config, log_folder=log_folder / name, device=device
            )
            for index, name in enumerate(names)
        ]

    @property
    def size(self) -> int:
        """Number of servers, whatever their state."""
        return len(self._servers)

    @property
    def may_grow(self) -> bool:
        """False: it has all the servers it ever has."""
        return False

    def start(self, listener: ServerListener) -> None:
        """See `ServerPool.start`."""
        for one in self._servers:
            one.start(listener)

    def evict(self, server: ServerInstance, reason: str) -> None:
        """See `ServerPool.evict`."""
        for one in self._servers:
            one.watch.evict(server, reason)

    def pid(self, name: str) -> int | None:
        """Return the process id of the guard of a server's current process; None without one."""
        server = next(server for server in self._servers if server.watch.name == name)
        return None if server.process is None else server.process.pid

    def close(self) -> None:
        """Stop all servers in parallel. Idempotent."""
        for one in self._servers:
            one.watch.request_stop()
        for one in self._servers:
            one.watch.join()


class _SupervisedServer:
    """Keeps one server running: start, wait, watch, restart, give up."""

    def __init__(
        self,
        name: str,
        index: int,
        command_of: Callable[[int, int], ServerCommand],
        *,
        health: Callable[[str, float], bool],
        config: SupervisorConfig,
        log_folder: Path,
        device: StartOnDevice,
    ) -> None:
        self.watch = Watch(name)
        self._index, self._command_of, self._health = index, command_of, health
        self._config, self._log_folder, self._device = config, log_folder, device
        self._lock = DeviceLock(device.lock)
        self.process: ServerProcess | None = None

    def start(self, listener: ServerListener) -> None:
        self.watch.start(self._run, listener)

    def _run(self, listener: ServerListener) -> None:
        failures = 0
        while not self.watch.ending:
            started = monotonic()
            reason = self._run_process(listener)
            if self.watch.ending:
                return
            failures = 1 if monotonic() - started > self._config.restart_reset_seconds else failures + 1
            if failures > self._config.max_restarts:
                listener.server_retired(self.watch.name, f"{reason}; {failures} starts failed, giving up")
                return
            pause = min(self._config.restart_pause_seconds * 2 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
            _logger.warning("%s: %s; restart %d of %d in %.0f s", self.watch.name, reason.splitlines()[0], failures,
                            self._config.max_restarts, pause)  # fmt: skip
            self.watch.pause(pause)

    def _run_process(self, listener: ServerListener) -> str:
        """Run one process from start to end; return why it ended with the end of its log."""
        instance: ServerInstance | None = None
        announced = False
        try:
            if not self._lock.take(alone=False, given_up=lambda: self.watch.ending):
                return "closed while the learner had the device"
            instance, process = self._launch()
            reason = self._wait_until_healthy(process, instance)
            if reason is None:
                self._device.put_to_sleep(instance.url)
                self._lock.release()
                listener.server_up(instance)
                announced = True
                _logger.info("%s is up at %s (incarnation %s)", self.watch.name, instance.url, instance.incarnation)
                reason = self._watch(process, instance)
        except (ArealError, OSError) as error:
            reason = f"the start failed: {error}"
        finally:
            text = self._stop_process()
            self._lock.release()
        reason = f"{reason}\n{text}" if text else reason
        if instance is not None and announced:
            listener.server_down(instance, reason)
        return reason

    def _launch(self) -> tuple[ServerInstance, ServerProcess]:
        port, incarnation = free_port(_HOST), new_incarnation()
        command = self._command_of(self._index, port)
        keep_newest(self._log_folder, "*.log", self._config.keep_logs - 1)
        process = ServerProcess(
            command.arguments,
            environment=command.environment,
            log_path=self._log_folder / f"{incarnation}.log",
            incarnation=incarnation,
            grace_seconds=self._config.grace_seconds,
            keeps=self._lock.descriptors,
        )
        instance = ServerInstance(name=self.watch.name, incarnation=incarnation, url=f"http://{_HOST}:{port}")
        self.process = process
        self.watch.enter(instance)
        return instance, process

    def _wait_until_healthy(self, process: ServerProcess, instance: ServerInstance) -> str | None:
        deadline = monotonic() + self._config.startup_seconds
        while not self.watch.ending:
            if (end := self._death(process)) is not None:
                return f"it ended while starting: {end}"
            if self._is_healthy(instance):
                return None
            if monotonic() > deadline:
                return f"not ready after {self._config.startup_seconds:g} s"
            self.watch.pause(min(self._config.poll_seconds, 0.5))
        return "closed while starting"

    def _watch(self, process: ServerProcess, instance: ServerInstance) -> str:
        missed, answered = 0, monotonic()
        while not self.watch.ending:
            self.watch.pause(self._config.poll_seconds)
            if (end := self._death(process)) is not None:
                return end
            if self._is_healthy(instance):
                missed, answered = 0, monotonic()
                continue
            missed += 1
            if missed >= self._config.max_missed_health_checks and monotonic() - answered > _DEATH_SECONDS:
                return f"hangs: {missed} health checks in a row were not answered"
        return "closed"

    def _death(self, process: ServerProcess) -> str | None:
        if self.watch.evicted is not None:
            return f"evicted: {self.watch.evicted}"
        return process.exit_text

    def _is_healthy(self, instance: ServerInstance) -> bool:
        try:
            return self._health(instance.url, self._config.health_timeout_seconds)
        except (ArealError, OSError):
            return False

    def _stop_process(self) -> str:
        """Stop what is left of the process; return the end of its log, empty after an orderly end."""
        process, self.process = self.process, None
        self.watch.leave()
        if process is None:
            return ""
        # Only an orderly end of the run deserves patience; a server that hangs has had its time.
        process.stop(grace_seconds=None if self.watch.ending else 0.0)
        return "" if self.watch.ending else f"end of {process.log_path}:\n{process.tail()}"
