"""Runs one server process in its own session, with a log file, and ends it without leaving anything behind.

The supervisor decides when to start, check or end a process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Final

from areal.api import EngineError
from areal.utils.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

INCARNATION_VARIABLE: Final = "AREAL_SERVER_INCARNATION"
"""Environment variable that tells a server which start it is."""
_KILL_SECONDS: Final = 10.0
_CLEAN_UP_SECONDS: Final = 5.0


def new_incarnation() -> str:
    """Return a new identity for a start."""
    return secrets.token_hex(6)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago. A server that finds it taken is restarted with another one."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def keep_newest(folder: Path, pattern: str, count: int) -> None:
    """Remove the logs in a folder, files or folders of them, except those that were written last."""
    logs = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
    for path in logs[: max(0, len(logs) - count)]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class ServerProcess:
    """A running command under the guard. Its output goes to `log_path`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path,
        incarnation: str,
        grace_seconds: float,
        keeps: Sequence[int] = (),
    ) -> None:
        """Start it. keeps: descriptors that stay open until all of it has ended."""
        self.incarnation = incarnation
        self.log_path = log_path
        self._grace_seconds = grace_seconds
        log_path.parent.mkdir(parents=True, exist_ok=True)
        lifeline, self._lifeline = os.pipe()
        guard = guarded(command, lifeline=lifeline, grace_seconds=grace_seconds)
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    guard,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment, INCARNATION_VARIABLE: incarnation},
                    pass_fds=(lifeline, *keeps),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._lifeline)
            raise EngineError(f"cannot start {command[0]}: {error}") from error
        finally:
            os.close(lifeline)

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the id of the process group."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, 128 + signal number when it was killed; None while it runs."""
        status = self._process.poll()
        return 128 - status if status is not None and status < 0 else status

    @property
    def exit_text(self) -> str | None:
        """Description of how it ended; None while it runs."""
        status = self.exit_status
        if status is None:
            return None
        number = status - 128
        if number > 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(number).name}"
        return f"exit status {status}"

    def tail(self, num_lines: int = 20) -> str:
        """Return the last lines of its output."""
        return log_tail(self.log_path, num_lines)

    def stop(self, *, grace_seconds: float | None = None) -> None:
        """End it and everything it started, and wait. grace_seconds: None uses that of the start; 0 kills at once."""
        grace = self._grace_seconds if grace_seconds is None else grace_seconds
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if grace > 0 else signal.SIGUSR1)
            # The guard kills after its own grace; some more for what is left, or for a guard that is stopped itself.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace + _CLEAN_UP_SECONDS)
        self._kill_group()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _kill_group(self) -> None:
        if self._process.poll() is not None and self._process.returncode >= 0:
            return  # the guard ended by itself: it has killed everything, and its group id may be somebody else's now
        # The group, not only the guard: a guard that is killed cannot clean up.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)


def log_tail(path: Path, num_lines: int = 20) -> str:
    """Return the last lines of a file, at most 64 KiB; empty without a file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-num_lines:])
