"""Tell time in which a thread waits for a processor from time in which it computes or sleeps.

Linux counts it. On a machine with more work than processors, a clock alone says that a thread took long when it only
did not get its turn.
"""

from __future__ import annotations

import os
import threading
import weakref
from time import sleep
from typing import Final

_READ_BYTES: Final = 512
_TURN_SECONDS: Final = 0.02
"""In which a thread that is on a processor is seen to have computed: the kernel counts several times in it."""


class RunQueue:
    """Counts for the thread that makes it."""

    def __init__(self) -> None:
        self.thread_id = threading.get_native_id()
        self._file: int | None = None
        try:
            self._file = os.open(f"/proc/self/task/{self.thread_id}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # not counted here: then all time is taken for the environment's
        weakref.finalize(self, os.close, self._file)

    def seconds(self) -> float:
        """Return the sum so far; 0 where it is not known. From any thread."""
        return self._counts()[1] / 1e9

    def is_waiting(self) -> bool:
        """Whether it could run and does not get its turn at present, which takes a moment to see. From another
        thread."""
        before, _ = self._counts()
        sleep(_TURN_SECONDS)
        return self._counts()[0] == before and self._state() == "R"

    def _counts(self) -> tuple[int, int]:
        """Nanoseconds on a processor, and of waiting for one."""
        if self._file is None:
            return 0, 0
        try:
            computed, waited, _ = os.pread(self._file, _READ_BYTES, 0).split()
        except (OSError, ValueError):  # the thread has ended
            return 0, 0
        return int(computed), int(waited)

    def _state(self) -> str:
        """ "R" of a thread that runs or could; "" where it is not known."""
        try:
            with open(f"/proc/self/task/{self.thread_id}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ""
