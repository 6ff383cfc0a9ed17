"""Runs one server in the foreground for trainers that use it by address: started once, watched, stopped gently.

It is not restarted when it dies: whatever starts this program (Slurm, systemd, a person) decides that.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from areal.api import EngineError, UsageError
from areal.infra.supervisor.device_lock import OWN_DEVICE, DeviceLock
from areal.infra.supervisor.process import ServerProcess, new_incarnation
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.supervisor.config import SupervisorConfig
    from areal.infra.supervisor.device_lock import StartOnDevice
    from areal.infra.supervisor.supervisor import ServerCommand

_POLL_INTERVAL_SECONDS: Final = 0.2
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneAddress:
    """Address and incarnation of a server."""

    url: str
    incarnation: str
    log: str

    def write(self, path: Path) -> None:
        """Write it as JSON, atomically."""
        atomic_write(path, json.dumps(asdict(self)) + "\n")


def url_of(host: str, port: int) -> str:
    """Return the address for servers.addresses; the name of this machine when the server listens on all interfaces."""
    name = socket.gethostname() if host in _ANY_HOST else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def check_port(host: str, port: int) -> None:
    """Raise UsageError for an address that cannot be bound now: the program would report it only later."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen at port {port} of {host}: {error}; choose another --port or --host"
            ) from error


def serve(  # noqa: PLR0913 - all that one server is told, each by keyword
    command: ServerCommand,
    *,
    host: str,
    port: int,
    health: Callable[[str, float], bool],
    config: SupervisorConfig,
    log_folder: Path,
    stop: StopRequest,
    on_ready: Callable[[StandaloneAddress], None],
    on_stop: Callable[[StandaloneAddress], None] | None = None,
    reached_at: str = "",
    device: StartOnDevice = OWN_DEVICE,
) -> StandaloneAddress:
    """Run until asked to stop; then on_stop is called, and the server has grace_seconds. reached_at: address by which
    others reach `host`, when it is another one. device: waited for before anything is started. Raises EngineError with
    the end of its log when it ends by itself or is not ready within startup_seconds."""
    incarnation = new_incarnation()
    log_path = log_folder / f"{incarnation}.log"
    standing = StandaloneAddress(url=url_of(reached_at or host, port), incarnation=incarnation, log=str(log_path))
    lock = DeviceLock(device.lock)
    if not lock.take(alone=False, given_up=lambda: stop.requested):
        return standing
    process = ServerProcess(
        command.arguments,
        environment=command.environment,
        log_path=log_path,
        incarnation=incarnation,
        grace_seconds=config.grace_seconds,
        keeps=lock.descriptors,
    )
    local = url_of("127.0.0.1" if host in _ANY_HOST else host, port)
    try:
        deadline = time.monotonic() + config.startup_seconds
        while not stop.requested and not health(local, config.health_timeout_seconds):
            _require_alive(process)
            if time.monotonic() > deadline:
                raise EngineError(f"the server is not ready after {config.startup_seconds:g} s\n{process.tail()}")
            time.sleep(_POLL_INTERVAL_SECONDS)
        if not stop.requested:
            device.put_to_sleep(local)
            lock.release()
            on_ready(standing)
        while not stop.requested:
            _require_alive(process)
            time.sleep(_POLL_INTERVAL_SECONDS)
        if on_stop is not None:
            on_stop(standing)
    finally:
        process.stop()
        lock.release()
    return standing


def _require_alive(process: ServerProcess) -> None:
    if process.exit_text is not None:
        raise EngineError(f"the server ended: {process.exit_text}\nend of {process.log_path}:\n{process.tail()}")
