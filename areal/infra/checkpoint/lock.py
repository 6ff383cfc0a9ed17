"""One process per run directory. The lock is the kernel's, so it ends with its process however that dies; the file's
content only tells a second process whom to ask."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from areal.api import BusyError, CheckpointError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from types import TracebackType

_logger = getLogger(__name__)
LOCK_NAME: Final = "run.lock"


class RunLock:
    """Exclusive right to write a run directory, held from `acquire` to `release` (or as a context manager).

        with RunLock(run_dir):
            train()

    A lock whose owner died is taken over without asking. The file stays after release: removing it would race.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.path = self.directory / LOCK_NAME
        self._descriptor: int | None = None
        _instances.add(self)

    def acquire(self) -> Self:
        """Take the lock; creates the directory.

        Raises BusyError naming pid, host and start time of the owner, CheckpointError when the folder cannot be locked.
        """
        if self._descriptor is not None:
            raise BusyError(f"run directory {self.directory} is already locked by this very object (pid {os.getpid()})")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(f"cannot create {self.path}: {error}; choose a writable output_dir") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            previous = _read_owner(descriptor)
            _write_owner(descriptor)
        except BlockingIOError:
            owner = _read_owner(descriptor)
            os.close(descriptor)
            raise BusyError(_busy_message(self.directory, owner)) from None
        except OSError as error:
            os.close(descriptor)
            raise CheckpointError(f"cannot lock {self.path}: {error}; use a file system that supports flock") from error
        if previous.get("pid") is not None:
            _logger.warning(
                "took over %s from pid %s on %s, which ended without releasing it",
                self.path,
                previous["pid"],
                previous.get("host"),
            )
        self._descriptor = descriptor
        return self

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            self._close()

    def __enter__(self) -> Self:
        """Acquire."""
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release."""
        self.release()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_instances: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _close_in_child() -> None:
    # A forked child shares the lock; if it kept its copy open, the lock would outlive the run.
    for lock in list(_instances):
        lock._close()


os.register_at_fork(after_in_child=_close_in_child)


def _read_owner(descriptor: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _write_owner(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "started_unix": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _busy_message(directory: Path, owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        who = "another process (it has just started and not said which)"
    else:
        started = datetime.fromtimestamp(owner["started_unix"], UTC).isoformat(timespec="seconds")
        who = f"pid {owner['pid']} on host {owner['host']}, running since {started}"
    return f"run directory {directory} is in use by {who}; wait for it, stop it, or choose another output_dir"
