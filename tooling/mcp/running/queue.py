"""Who may run beside whom: commands that read, in parallel; a command that writes, alone.

A command that reads beside one that writes would see half a change, and report it as an interrupted run.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READERS: Final = 4
"""Most commands at once; each is a process that may use a core."""


class Queue:
    """Of one repository. Whoever wants to write goes before those that come later and read."""

    def __init__(self) -> None:
        self._changed = anyio.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Beside other readers."""
        async with self._changed:
            while self._writing or self._writers_waiting or self._readers >= READERS:
                await self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            await self._leave(readers=1)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Alone."""
        async with self._changed:
            self._writers_waiting += 1
            try:
                while self._writing or self._readers:
                    await self._changed.wait()
                self._writing = True
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            await self._leave(writing=True)

    async def _leave(self, *, readers: int = 0, writing: bool = False) -> None:
        with anyio.CancelScope(shield=True):
            async with self._changed:
                self._readers -= readers
                self._writing = self._writing and not writing
                self._changed.notify_all()
