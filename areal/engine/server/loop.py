"""Runs the event loop of a server engine: one thread that does all network traffic and owns all state.

Callers are on other loops and threads; their calls run here, so the engine needs no locks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from areal.api import EngineError

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")
_JOIN_SECONDS = 10.0


class EngineLoop:
    """Event loop in its own thread, started by the constructor and stopped by `close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for it. Call it from any other thread."""
        if self.is_current:
            coroutine.close()
            raise EngineError("a blocking engine call was made on the engine's own thread")
        future = self._submit(coroutine)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineError("the engine was closed while a call was waiting") from None
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread
            raise

    async def await_here(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on this loop while awaiting it on the caller's; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self._submit(coroutine))

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Cancel running coroutines and stop the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS)

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        if self._closed:
            coroutine.close()
            raise EngineError("the engine is closed; build a new one")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
