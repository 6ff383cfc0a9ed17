"""A coroutine is run to its end with and without a loop that runs already."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from areal.utils.coroutines import run_coroutine

PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


async def work(value):
    await asyncio.sleep(0)
    if value is None:
        raise LookupError("no value")
    return value, PLACE.get()


def test_without_a_loop_it_is_run_here():
    assert run_coroutine(work(1)) == (1, "nowhere")
    with pytest.raises(LookupError, match="no value"):
        run_coroutine(work(None))


async def test_inside_a_running_loop_it_is_run_beside_it_with_the_same_context():
    """As in a notebook, whose cells are run by a loop."""
    PLACE.set("a cell")
    assert run_coroutine(work(2)) == (2, "a cell")
    with pytest.raises(LookupError, match="no value"):
        run_coroutine(work(None))
