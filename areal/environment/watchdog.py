"""Find out which environment blocks the event loop, while it does.

An environment in the process of the rollouts shares one event loop with all episodes. One that computes or sleeps
without `await` stops every other, and no time limit can fire meanwhile. So each stretch that an environment runs is
timed, and a thread looks at the one that is running: it names the environment even if it never returns. On a machine
with more work than processors a thread that could run may have to wait for its turn; the kernel says for how long, and
that is not the environment's doing.
"""

from __future__ import annotations

import os
import threading
import weakref
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

logger = getLogger(__name__)

_LOOK_SECONDS: Final = 0.05
_READ_BYTES: Final = 512
_TURN_SECONDS: Final = 0.02
"""In which a thread that is on a processor is seen to have computed: the kernel counts several times in it."""


class LoopWatchdog:
    """Times the stretches of environments on one event loop."""

    def __init__(self, name: str, *, block_seconds: float) -> None:
        """name: of the environment, for messages. block_seconds: a stretch of this length is too long."""
        self._name, self._block_seconds = name, block_seconds
        self._running: tuple[str, float, float] | None = None
        """The method, when it began, and the seconds that its thread had waited for a processor by then."""
        self._reported: tuple[str, float, float] | None = None
        self._queue = _RunQueue()
        self._thread: threading.Thread | None = None
        self.blocked_seconds = 0.0
        """All stretches that were too long."""

    def watch(self, coroutine: Coroutine[Any, Any, Any], method: str) -> Watched:
        """Return an awaitable that runs the coroutine and times it. method: "reset", "step" or "close"."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name=f"areal-watch-{self._name}", daemon=True)
            self._thread.start()
        return Watched(self, coroutine, method)

    def begin(self, method: str) -> None:
        """Note that an environment runs from now on."""
        if self._queue.thread_id != threading.get_native_id():
            self._queue = _RunQueue()
        self._running = (method, monotonic(), self._queue.seconds())

    def end(self) -> None:
        """Note that it has handed control back."""
        running, self._running = self._running, None
        assert running is not None, "begin comes first"
        if (seconds := self._seconds_of(running)) >= self._block_seconds:
            self.blocked_seconds += seconds
            self._report(running, seconds)

    def _look(self) -> None:
        while True:
            sleep(_LOOK_SECONDS)
            running, began = self._running, monotonic()
            if running is None or self._seconds_of(running) < self._block_seconds:
                continue
            # A wait counts when it is over: one that still lasts is not yet in what the kernel says.
            if self._queue.is_waiting() or self._running is not running:
                continue
            # The wait that was under way when this look began has ended and counts; one that began since then does not
            # yet, and is no longer than the look itself.
            seconds = self._seconds_of(running) - (monotonic() - began)
            if seconds >= self._block_seconds:
                self._report(running, seconds)

    def _seconds_of(self, running: tuple[str, float, float]) -> float:
        """Return how long a stretch has computed or slept."""
        _, began, waited = running
        seconds = monotonic() - began
        if seconds < self._block_seconds:
            return seconds  # most are short, and need no look at the queue
        return seconds - (self._queue.seconds() - waited)

    def _report(self, running: tuple[str, float, float], seconds: float) -> None:
        if self._reported == running:
            return
        self._reported = running
        logger.warning(
            "environment %s has kept the event loop busy for %.2f s in %s(): no other episode gets on meanwhile, and "
            "no time limit can fire; run it with host kind subprocess, or let it await",
            self._name,
            seconds,
            running[0],
        )


class _RunQueue:
    """How long the thread that makes it has waited for a processor while it could run, as Linux counts it."""

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


class Watched:
    """A coroutine whose stretches between two awaits are timed."""

    def __init__(self, watchdog: LoopWatchdog, coroutine: Coroutine[Any, Any, Any], method: str) -> None:
        self._watchdog, self._coroutine, self._method = watchdog, coroutine, method

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the coroutine as `await coroutine` would."""
        thrown: BaseException | None = None
        while True:
            self._watchdog.begin(self._method)
            try:
                waited_for = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration as stop:
                return stop.value
            finally:
                self._watchdog.end()
            thrown = None
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 - a cancellation belongs to the coroutine, which may clean up
                thrown = error
