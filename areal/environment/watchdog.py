"""Find out which environment blocks the event loop, while it does.

An environment in the process of the rollouts shares one event loop with all episodes. One that computes or sleeps
without `await` stops every other, and no time limit can fire meanwhile. So each stretch that an environment runs is
timed, and a thread looks at the one that is running: it names the environment even if it never returns. On a machine
with more work than processors a thread that could run may have to wait for its turn; the kernel says for how long, and
that is not the environment's doing.
"""

from __future__ import annotations

import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from areal.utils.logging import getLogger
from areal.utils.run_queue import RunQueue

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

logger = getLogger(__name__)

_LOOK_SECONDS: Final = 0.05


class LoopWatchdog:
    """Times the stretches of environments on one event loop."""

    def __init__(self, name: str, *, block_seconds: float) -> None:
        """name: of the environment, for messages. block_seconds: a stretch of this length is too long."""
        self._name, self._block_seconds = name, block_seconds
        self._running: tuple[str, float, float] | None = None
        """The method, when it began, and the seconds that its thread had waited for a processor by then."""
        self._reported: tuple[str, float, float] | None = None
        self._queue = RunQueue()
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
            self._queue = RunQueue()
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
