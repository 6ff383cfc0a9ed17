"""Run a coroutine to its end, also where a loop runs in this thread already, as in a cell of a notebook."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


def run_coroutine(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Return what the coroutine returns; like `asyncio.run`, which a running loop refuses: then a thread has its own.

    Example: `run_coroutine(reward(prompt, completion, [], []))`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    found: list[_T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            found.append(context.run(asyncio.run, coroutine))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread of the caller
            raised.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=work, name="areal-coroutine")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]
