"""Mutual exclusion between decode steps on the event loop and control calls from any thread; control calls go first."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class StepGate:
    """A lock whose step side never blocks and never overtakes a waiting control call.

    A plain lock would not do: the driver releases and takes it again within microseconds, so a trainer thread that
    waits for it could starve; and a driver that blocked on it would stop every other coroutine of the loop.
    """

    def __init__(self) -> None:
        self._step = threading.Lock()
        self._count = threading.Lock()
        self._claims = 0

    @contextmanager
    def control(self) -> Iterator[None]:
        """Enter once no step is running; none starts until exit. Not reentrant."""
        with self._count:
            self._claims += 1
        try:
            with self._step:
                yield
        finally:
            with self._count:
                self._claims -= 1

    @contextmanager
    def step(self) -> Iterator[bool]:
        """Yields whether the caller may compute: False while a control call waits or runs."""
        if self._claims or not self._step.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._step.release()
