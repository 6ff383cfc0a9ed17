"""Says what everyone is waiting for when no episode finishes for long. It only reports; it never ends anything."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable

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
        """An episode finished, or new ones were started after a time without any."""
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
