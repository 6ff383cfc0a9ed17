"""Runs the thread of one server and passes requests to it from other threads: evict the server, stop.

The owner (`supervisor`, `addresses`) defines what the thread does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.api import ServerInstance, ServerListener


class Watch:
    """Thread of one server. `enter`, `leave` and `pause` are called by the thread itself, the other methods by any
    thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance: ServerInstance | None = None
        """The instance in use; None without one."""
        self.evicted: str | None = None
        """Why that instance was evicted; None while it is not."""
        self.ending = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: Callable[[ServerListener], None], listener: ServerListener) -> None:
        """Start the thread, which ends when `run` returns."""
        self._thread = threading.Thread(target=run, args=(listener,), name=f"areal-{self.name}", daemon=True)
        self._thread.start()

    def enter(self, instance: ServerInstance) -> None:
        """Mark this instance of the server as in use."""
        with self._lock:
            self.instance, self.evicted = instance, None

    def leave(self) -> None:
        """Mark no instance as in use; forget an eviction of the last one."""
        with self._lock:
            self.instance = self.evicted = None

    def evict(self, server: ServerInstance, reason: str) -> None:
        """See `ServerPool.evict`; ignored when `server` is not in use here."""
        with self._lock:
            if self.instance == server and self.evicted is None:
                self.evicted = reason
                self._wake.set()

    def request_stop(self) -> None:
        """Ask `run` to return soon."""
        self.ending = True
        self._wake.set()

    def wake(self) -> None:
        """End a pause."""
        self._wake.set()

    @property
    def running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> bool:
        """Wait for the end of the thread; return whether it was running. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        return thread is not None

    def pause(self, seconds: float) -> None:
        """Sleep until the time is over or a request arrives."""
        if not self.ending and self.evicted is None:
            self._wake.wait(seconds)
        self._wake.clear()
