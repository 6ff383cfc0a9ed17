"""The thread of one server, and what others may tell it meanwhile: that its server is given up, that it shall end.

What the thread does is the business of who has it (`supervisor`, `addresses`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.api import ServerInstance, ServerListener


class Watch:
    """Of one server. `enter`, `leave` and `pause` are called by its own thread, the others by anybody."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance: ServerInstance | None = None
        """The start of the server that is in use; None while there is none."""
        self.condemned: str | None = None
        """Why that start was given up."""
        self.ending = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: Callable[[ServerListener], None], listener: ServerListener) -> None:
        """Begin the thread, which ends when `run` returns."""
        self._thread = threading.Thread(target=run, args=(listener,), name=f"areal-{self.name}", daemon=True)
        self._thread.start()

    def enter(self, instance: ServerInstance) -> None:
        """This start of the server is in use from now on."""
        with self._lock:
            self.instance, self.condemned = instance, None

    def leave(self) -> None:
        """No start of the server is in use; what was said against the last one is forgotten."""
        with self._lock:
            self.instance = self.condemned = None

    def condemn(self, server: ServerInstance, reason: str) -> None:
        """See `ServerPool.condemn`; nothing happens when `server` is not in use here."""
        with self._lock:
            if self.instance == server and self.condemned is None:
                self.condemned = reason
                self._wake.set()

    def ask_to_end(self) -> None:
        """`run` shall return soon."""
        self.ending = True
        self._wake.set()

    def join(self) -> bool:
        """Wait for the end of the thread; whether there was one. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        return thread is not None

    def pause(self, seconds: float) -> None:
        """Sleep, at most until somebody says something."""
        if not self.ending and self.condemned is None:
            self._wake.wait(seconds)
        self._wake.clear()
