"""When recovery state is saved: by steps, and by time with a bounded cost."""

from __future__ import annotations

import contextlib
import random
from itertools import pairwise

import pytest

from areal.api import ConfigError
from areal.infra.checkpoint.config import CheckpointConfig
from areal.infra.checkpoint.schedule import SaveSchedule, describe


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def saves(config: CheckpointConfig, *, step_seconds: float, save_seconds, steps: int) -> list[tuple[float, float]]:
    """(begin, end) of every save in a run of equal steps; save_seconds: function of the number of the save."""
    clock = Clock()
    schedule = SaveSchedule(config, clock=clock)
    clock.now += 500.0  # loading the model
    schedule.start()
    found = []
    for step in range(1, steps + 1):
        clock.now += step_seconds
        if schedule.is_due(step):
            begin = clock.now
            with schedule.measured():
                clock.now += save_seconds(len(found))
            found.append((begin, clock.now))
    return found


def test_by_default_a_crash_after_some_minutes_loses_two_of_them():
    begins = [
        begin - 1500.0 for begin, _ in saves(CheckpointConfig(), step_seconds=7, save_seconds=lambda _: 1, steps=200)
    ]
    assert begins[0] == 126  # the first step that ends 120 s after the first one began
    assert all(later - earlier <= 120 + 7 + 1 for earlier, later in pairwise(begins))


@pytest.mark.parametrize("bound", [0.01, 0.03, 0.5])
def test_saves_take_no_more_than_their_share_however_long_they_take(bound):
    noise = random.Random(4)
    config = CheckpointConfig(max_overhead=bound)
    found = saves(config, step_seconds=3.0, save_seconds=lambda _: noise.uniform(0.01, 90), steps=40_000)
    assert len(found) > 20
    spent = 0.0
    for (begin, end), (later, _) in pairwise(found):
        assert end - begin <= bound * (later - begin) * (1 + 1e-9)
        spent += end - begin
    assert spent <= bound * (found[-1][0] - found[0][0]) * (1 + 1e-9)


def test_a_quick_save_after_a_slow_one_shortens_the_pause_again():
    found = saves(CheckpointConfig(), step_seconds=10, save_seconds=lambda number: 60 if number == 0 else 1, steps=1000)
    pauses = [later - end for (_, end), (later, _) in pairwise(found)]
    assert pauses[0] == pytest.approx(60 / 0.03 - 60, abs=10)
    assert set(pauses[1:]) == {120}


def test_a_save_that_fails_counts_like_one_that_worked():
    clock = Clock()
    schedule = SaveSchedule(CheckpointConfig(), clock=clock)
    clock.now += 120
    assert schedule.is_due(1)
    with contextlib.suppress(OSError), schedule.measured():
        clock.now += 30
        raise OSError("disk full")
    clock.now += 900
    assert not schedule.is_due(2)
    clock.now += 71
    assert schedule.is_due(3)


def test_steps_are_saved_whatever_that_costs_and_time_can_be_switched_off():
    config = CheckpointConfig(every_steps=3, every_seconds=0)
    found = saves(config, step_seconds=100, save_seconds=lambda _: 500, steps=10)
    assert len(found) == 3
    assert not saves(CheckpointConfig(every_seconds=0), step_seconds=1000, save_seconds=lambda _: 0, steps=10)


def test_a_save_by_steps_puts_the_next_one_by_time_off():
    config = CheckpointConfig(every_steps=2, every_seconds=100)
    assert len(saves(config, step_seconds=60, save_seconds=lambda _: 0, steps=10)) == 5


def test_the_rule_is_told_in_words():
    assert describe(CheckpointConfig(every_steps=20)).startswith(
        "after every 20 steps; after the first step that ends 120 s"
    )
    assert "more than 3 % of the time" in describe(CheckpointConfig())
    assert describe(CheckpointConfig(every_seconds=0)) == "after the last step, and on SIGTERM or Ctrl-C"


@pytest.mark.parametrize("values", [{"every_seconds": -1}, {"max_overhead": 0}, {"max_overhead": 1.5}])
def test_impossible_bounds_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        CheckpointConfig(**values)
