"""Tells generation whether training in the same process needs the cores now.

A run that generates and trains at the same time has one set of cores for both. Of the arithmetic of a token, training
does three quarters (a forward pass costs 2 operations per parameter, forward and backward 6), so that generation gets a
quarter of its threads while training computes, and all of them while training waits for it.

Example: `with training():` around a batch; a decode step on 8 threads asks `threads_beside_training(8)` and gets 2.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARE: Final = 4
"""One of so many threads generates while training computes."""

_lock = threading.Lock()
_batches = 0
"""That are computed now."""


@contextmanager
def training() -> Iterator[None]:
    """Say that a batch is computed, from entry to exit, in any thread of this process."""
    _add(1)
    try:
        yield
    finally:
        _add(-1)


def threads_beside_training(wanted: int) -> int:
    """Return how many of `wanted` threads generation should use at this moment, at least 1."""
    return max(1, wanted // _SHARE) if _batches else wanted


def _add(number: int) -> None:
    global _batches  # noqa: PLW0603 - of the process, as its cores are
    with _lock:
        _batches += number
