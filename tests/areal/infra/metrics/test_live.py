"""The live view on a real terminal, and log lines everywhere else."""

from __future__ import annotations

import io
import logging
import math
import os
import pty
import sys
from pathlib import Path

import pytest

from areal.infra.metrics.logger import LiveView, format_step, sparkline, time_split

METRICS = {
    "reward/mean": 0.53125, "length/mean": 41.25, "staleness/max": 1.0, "throughput/tokens_per_second": 1204.2,
    "time/step": 2.0, "time/train": 0.5, "time/rollout_wait": 1.4,
}  # fmt: skip


def test_without_a_terminal_each_step_is_one_log_line(caplog):
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, "areal"), LiveView(10, stream=stream) as view:
        view.update(3, METRICS)
    assert [record.getMessage() for record in caplog.records] == [
        "step 3/10  reward 0.531  length 41.2  stalest 1  tokens/s 1,204  "
        "step took 2.00 s (rollout_wait 70%, train 25%)"
    ]
    assert stream.getvalue() == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_a_terminal_gets_a_drawing_unless_it_is_switched_off(enabled, caplog):
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream, caplog.at_level(logging.INFO, "areal"):
        with LiveView(10, title="run <x> [bold]", enabled=enabled, stream=stream) as view:
            for step in range(1, 11):
                view.update(step, {**METRICS, "reward/mean": step / 10})
        drawn = b""
        if enabled:
            while b"step 10/10" not in drawn:
                drawn += os.read(leader, 65536)
    os.close(leader)
    if enabled:
        text = drawn.decode()
        assert "run <x> [bold]" in text
        assert "▁" in text
        assert "█" in text
        assert not caplog.records
    else:
        assert len(caplog.records) == 10


def test_the_terminal_library_is_not_loaded_without_a_terminal():
    import subprocess

    code = (
        "import sys; from areal.infra.metrics.logger import LiveView\n"
        "with LiveView(2) as view: view.update(1, {'reward/mean': 0.5})\n"
        "print('rich' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=root,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.strip() == "False"


def test_a_sparkline_scales_to_its_values():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert sparkline([0.0, math.nan, 1.0]) == "▁·█"
    assert sparkline([]) == ""


def test_shares_of_time_are_of_the_whole_step_even_when_parts_are_missing():
    assert time_split({"time/step": 4.0, "time/a": 1.0, "time/b": 2.0}) == [("b", 0.5), ("a", 0.25)]
    assert time_split({"time/a": 1.0, "time/b": 3.0}) == [("b", 0.75), ("a", 0.25)]
    assert time_split({"reward/mean": 1.0}) == []


def test_a_step_without_known_metrics_still_says_where_the_run_is():
    assert format_step(5, None, {"custom": 1.0}) == "step 5"
