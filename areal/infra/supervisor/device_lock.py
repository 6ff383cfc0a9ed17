"""Who may take memory of a device that servers and a learner have in turn: a locked file.

The learner has the file alone while it has the device. Servers that start have it together, from before their process
is started until they sleep; only the learner wakes them, after it has let go. So neither a server that is started again
nor a learner that is started again meets the other one on the device. The kernel lets go for a process that ends: a
server's guard keeps the file open, so that nobody follows before everything of the server has ended.
"""

from __future__ import annotations

import fcntl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError, EngineError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedWriter
    from pathlib import Path

_logger = getLogger(__name__)
_POLL_SECONDS: Final = 0.1


def never() -> bool:
    """Say that nobody gives up waiting."""
    return False


class DeviceLock:
    """One holder's part of the locked file. path: None for a device of one's own, which is always there to be taken."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BufferedWriter | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process inherits that is to keep the lock beyond the end of this one."""
        return () if self._file is None else (self._file.fileno(),)

    def take(self, *, alone: bool, seconds: float | None = None, given_up: Callable[[], bool] = never) -> bool:
        """Wait for the device; return whether it was taken. alone: as the learner. given_up: ends the wait without it.

        Raises EngineError after so many seconds (None: any number), ConfigError where the file cannot be locked.
        """
        if self._path is None or self._file is not None:
            return True
        started, waits = time.monotonic(), False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("ab")
            while not self._try(file, alone=alone):
                if not waits:
                    _logger.info("waiting for the device of %s", self._path)
                waits = True
                if given_up():
                    file.close()
                    return False
                if seconds is not None and time.monotonic() - started > seconds:
                    file.close()
                    raise EngineError(
                        f"the device was not given up within {seconds:g} s by whoever has {self._path} locked: servers "
                        f"that start, or another learner",
                        where="servers.device_lock",
                        fix="end servers that hang (see their logs) or the other run, or raise "
                        "supervisor.startup_seconds",
                    )
                time.sleep(_POLL_SECONDS)
        except OSError as error:
            raise ConfigError(
                f"cannot lock {self._path}: {error}",
                where="servers.device_lock",
                fix="choose a file on a file system that supports flock",
            ) from error
        self._file = file
        return True

    def release(self) -> None:
        """Give the device up, also for processes that have inherited the lock. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
            file.close()

    @staticmethod
    def _try(file: BufferedWriter, *, alone: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOnDevice:
    """How a server starts on a device that it has in turn with a learner: it holds `lock`, and sleeps once it is ready.

    put_to_sleep: called with its address; raises ArealError or OSError when it does not sleep.
    """

    lock: Path | None = None
    """None: the device is the server's own, and nothing is done."""
    put_to_sleep: Callable[[str], None] = lambda _: None


OWN_DEVICE: Final = StartOnDevice()
