"""Numbers recorded from user code: scopes, what is refused, and how samples are reduced."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch

from areal.utils import stats


def test_values_belong_to_the_scope_that_encloses_the_call():
    stats.record("before", 1.0)  # no scope: nothing happens
    with stats.scope() as outer:
        stats.record("a", 1)
        with stats.scope() as inner:
            stats.record("a", 5)
        stats.record("a", 2)
    stats.record("after", 1.0)
    assert (outer, inner) == ({"a": [1.0, 2.0]}, {"a": [5.0]})


def test_tasks_and_threads_of_a_sample_record_into_it_and_not_into_others():
    async def sample(number):
        with stats.scope() as values:
            child = asyncio.create_task(asyncio.to_thread(stats.record, "thread", number))
            await asyncio.gather(child, asyncio.sleep(0))
            stats.record("own", number)
        return values

    async def run():
        return await asyncio.gather(*(sample(number) for number in range(4)))

    assert asyncio.run(run()) == [{"thread": [float(n)], "own": [float(n)]} for n in range(4)]


@pytest.mark.parametrize("value", [True, 2, np.float32(0.5), np.int64(3), np.bool_(True), torch.tensor(1.5)])
def test_numbers_of_any_library_become_floats(value):
    with stats.scope() as values:
        stats.record("tools/calls.ok-2", value)
    assert values == {"tools/calls.ok-2": [float(value)]}
    assert type(values["tools/calls.ok-2"][0]) is float


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, "3", None, [1.0], 10**400, 1j, torch.tensor([1.0, 2.0]), np.array([1.0, 2.0])]
)
def test_anything_else_is_refused_with_the_line_that_recorded_it(value):
    with stats.scope() as values, pytest.raises(ValueError, match="expected a finite number") as caught:
        stats.record("length", value)
    assert "stats.record('length'" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)
    assert "in test_anything_else_is_refused_with_the_line_that_recorded_it" in str(caught.value)
    assert values == {}


@pytest.mark.parametrize("name", ["", "two words", "/a", "a/", "a//b", "a/count", "max", 3, "a\n"])
def test_a_name_that_metrics_cannot_hold_is_refused(name):
    with stats.scope(), pytest.raises(ValueError, match="expected a name"):
        stats.record(name, 1.0)


def test_without_a_scope_nothing_is_looked_at_and_nothing_is_kept():
    assert stats.record("two words", math.nan) is None
    with stats.scope() as values:
        pass
    stats.record("late", 1.0)
    assert values == {}


def test_a_sample_counts_once_whatever_it_recorded_and_others_not_at_all():
    first, second = stats.means({"a": [1.0, 3.0], "b": [4.0]}), stats.means({"a": [8.0]})
    assert stats.reduce([first, second, {}]) == {
        "a": 5.0, "a/count": 2.0, "a/min": 2.0, "a/max": 8.0,
        "b": 4.0, "b/count": 1.0, "b/min": 4.0, "b/max": 4.0,
    }  # fmt: skip
    assert stats.reduce([]) == {}


def test_what_another_process_recorded_is_added():
    with stats.scope() as values:
        stats.record("a", 1.0)
        stats.merge({"a": [2.0], "b": [3.0]})
    stats.merge({"a": [9.0]})
    assert values == {"a": [1.0, 2.0], "b": [3.0]}
