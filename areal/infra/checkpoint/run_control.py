"""Let one process at a time write a run directory, and turn signals into a request to stop.

The lock is the kernel's, so it ends with its process however that dies; the file's content only tells a second process
whom to ask. SIGTERM and the first Ctrl-C become a request that the training loop answers at a safe point.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import threading
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from areal.api import BusyError, CheckpointError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from types import FrameType, TracebackType


_logger = getLogger(__name__)
_POLL_SECONDS: Final = 0.1
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
            own = {"pid": os.getpid(), "host": socket.gethostname(), "started_unix": time.time()}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(own).encode(), 0)
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


def _busy_message(directory: Path, owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        who = "another process (it has just started and not said which)"
    else:
        started = datetime.fromtimestamp(owner["started_unix"], UTC).isoformat(timespec="seconds")
        who = f"pid {owner['pid']} on host {owner['host']}, running since {started}"
    return f"run directory {directory} is in use by {who}; wait for it, stop it, or choose another output_dir"


_logger = getLogger(__name__)


class StopRequest:
    """Watches SIGTERM and SIGINT while used as a context manager; the loop asks `requested` between steps.

    The first signal only sets a flag. A second SIGINT raises KeyboardInterrupt: the user does not want to wait.
    Outside the main thread no handler can be installed; then only `request` stops the loop.

        with StopRequest() as stop:
            while not stop.requested: ...
        raise SystemExit(stop.exit_code)
    """

    def __init__(self) -> None:
        # A plain attribute and no Event: setting an Event from a handler can deadlock with the code it interrupted.
        self._signal: int | None = None
        self._requested = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the loop should finish its step, save and return."""
        return self._requested

    @property
    def signal_number(self) -> int | None:
        """The signal that asked first; None when no signal did."""
        return self._signal

    @property
    def exit_code(self) -> int:
        """128 + signal number, as shells expect (143 for SIGTERM, 130 for SIGINT); 0 when no signal arrived."""
        return 0 if self._signal is None else 128 + self._signal

    def requested_within(self, seconds: float) -> bool:
        """Sleep, and return True as soon as somebody asks; False after that many seconds."""
        deadline = time.monotonic() + seconds
        while not self._requested and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_POLL_SECONDS, left))
        return self._requested

    def request(self) -> None:
        """Ask from code, from any thread."""
        self._requested = True

    def __enter__(self) -> Self:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        else:
            _logger.warning("signals are only seen by the main thread: SIGTERM and Ctrl-C will not save a checkpoint")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the previous handlers back."""
        for number, handler in self._previous.items():
            # None: it was not installed from Python and cannot be put back; the default is the nearest thing.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # No logging here: the interrupted code may hold the log's lock.
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._requested = True
        if self._signal is None:
            self._signal = number
