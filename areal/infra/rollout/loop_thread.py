"""Run the rollouts' event loop in a daemon thread: tasks end with it, errors reach the caller, stalls are reported.

A thread that waits for rollouts polls for a stop request. A signal only sets a flag (see
`areal.infra.checkpoint.run_control`), and a thread that waited for a straggler would see that flag when the straggler
is done: too late for a machine that is taken away seconds after SIGTERM.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from areal.api import RolloutError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable

    ShouldStop = Callable[[], bool]
    from collections.abc import Callable, Coroutine


POLL_INTERVAL_SECONDS: Final = 0.2


class RolloutStoppedError(RolloutError):
    """The caller asked to stop while it waited. Nothing was handed out: the state is that between two steps."""


def never() -> bool:
    """For callers that are not asked to stop."""
    return False


logger = getLogger(__name__)


class StallWatchdog:
    """A thread of its own, so that it also reports when the event loop is the one that hangs.

    describe: one line per pending prompt, oldest first; empty when nothing is pending. Called from this thread.
    """

    def __init__(self, stall_seconds: float, describe: Callable[[], list[str]]) -> None:
        self._stall_seconds, self._describe = stall_seconds, describe
        self._last_beat = monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="areal-rollout-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """Note that an episode finished, or new ones were started after a time without any."""
        self._last_beat = monotonic()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        reported_at = 0.0
        while not self._stop.wait(self._stall_seconds / 4):
            now = monotonic()
            if now - max(self._last_beat, reported_at) < self._stall_seconds:
                continue
            pending = self._describe()
            if pending:
                reported_at = now
                logger.warning(
                    "no episode finished for %.0f s (stall_seconds = %g); pending:\n%s",
                    now - self._last_beat,
                    self._stall_seconds,
                    "\n".join(f"  {line}" for line in pending),
                )


_T = TypeVar("_T")
_CANCEL_SECONDS = 5.0
_JOIN_SECONDS = 15.0


class LoopThread:
    """Start once, close once. on_end: called from the thread when it fails or ends, to wake whoever waits for it."""

    def __init__(self, name: str, *, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._closed = False

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    @property
    def failed(self) -> bool:
        """Whether something ended the work for good."""
        return self._failure is not None

    def start(self) -> bool:
        """Start the thread; False when it was started before. Raises what ended it, if anything has."""
        self.raise_failure()
        if self.started:
            return False
        self._thread.start()
        self._ready.wait()
        return True

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` on the loop, after everything scheduled before. Any thread."""
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(function)

    def spawn(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task that ends with this thread. Only on the loop."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run(self, coroutine: Coroutine[Any, Any, _T], should_stop: ShouldStop = never) -> _T:
        """Run `coroutine` on the loop and wait for its result; not from the loop's own thread.

        Raises RolloutStoppedError, after cancelling it, when `should_stop` says so first.
        """
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], POLL_INTERVAL_SECONDS).done:
                if should_stop():
                    raise RolloutStoppedError("asked to stop while waiting for rollouts")
            return future.result()
        except concurrent.futures.CancelledError:
            self.raise_failure()
            raise RolloutError("the rollout executor was closed while the call was waiting") from None
        except BaseException:
            future.cancel()  # the caller stopped waiting, for this or for Ctrl-C
            raise

    def fail(self, error: BaseException) -> None:
        """End the work because of `error`; the first one counts. Only on the loop."""
        if self._failure is None:
            self._failure = error
        for task in list(self._tasks):
            task.cancel()
        self._on_end()

    def raise_failure(self) -> None:
        """Raise what ended the work, if anything has."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RolloutError("the rollout executor is closed")

    def close(self) -> None:
        """Cancel all tasks and end the thread. Idempotent."""
        self._closed = True
        if not self.started or not self._thread.is_alive():
            return
        assert self._loop is not None
        assert self._stop is not None
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            return  # it ended by itself in this moment
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            logger.warning("thread %s does not end: an episode blocks the event loop", self._thread.name)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 -- nobody awaits this thread: the callers must be told
            self._failure = self._failure or error
        finally:
            self._closed = True
            self._ready.set()
            self._on_end()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._handle)
        self._ready.set()
        await self._stop.wait()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCEL_SECONDS)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A callback that raises is the runtime (or the engine) breaking. Anything else is a task of user code that
        # nobody awaited, which is only worth a log line.
        error = context.get("exception")
        if error is not None and "handle" in context:
            self.fail(error)
        else:
            loop.default_exception_handler(context)
