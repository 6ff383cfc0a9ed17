"""Limits that processes share: turns, places that a dead process gives back, and pauses."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from areal.reward.judge_limits import NoTurnError, SharedLimits


@pytest.fixture
def limits(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda **values: SharedLimits(name="server", **values)


def soon(seconds=60):
    return time.monotonic() + seconds


def test_turns_are_evenly_spaced_and_one_too_far_away_is_refused(limits):
    two = limits(per_second=20.0)
    started = time.monotonic()
    for _ in range(3):
        with two.place(soon()):
            pass
    assert time.monotonic() - started >= 0.1 - 0.01
    slow = limits(per_second=0.01)
    with slow.place(soon()):
        pass
    with pytest.raises(NoTurnError, match="the next turn is"), slow.place(soon(0.1)):
        pass


def test_a_pause_holds_for_everybody_with_the_name_and_nobody_else(limits):
    limits(per_second=100.0).pause(60)
    with pytest.raises(NoTurnError), limits(per_second=100.0).place(soon(0.1)):
        pass
    with SharedLimits(name="other", per_second=100.0).place(soon()):
        pass


def test_a_schedule_that_is_damaged_or_far_in_the_future_counts_for_nothing(limits, tmp_path):
    one = limits(per_second=1.0)
    with one.place(soon()):
        pass
    (schedule,) = tmp_path.rglob("next")
    for text in ("nonsense", "9e99", f"{time.time() + 1e6}"):
        schedule.write_text(text)
        with one.place(soon()):
            assert abs(float(schedule.read_text()) - time.time()) < 5


def hold(folder, ready):
    import tempfile

    tempfile.tempdir = folder
    with SharedLimits(name="server", at_a_time=1).place(time.monotonic() + 5):
        ready.set()
        time.sleep(600)


def test_a_place_is_taken_across_processes_and_comes_back_when_its_holder_is_killed(limits, tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=hold, args=(str(tmp_path), ready))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(NoTurnError, match="all 1 places stayed taken"), limits(at_a_time=1).place(soon(0.05)):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(60)
    with limits(at_a_time=1).place(soon()):
        pass
