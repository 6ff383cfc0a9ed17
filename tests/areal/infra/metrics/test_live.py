"""The live view on a real terminal, and log lines everywhere else."""

from __future__ import annotations

import io
import logging
import math
import os
import pty
import sys
import types
from pathlib import Path

import pytest

from areal.infra.metrics.live_view import LiveView, axis, format_seconds, format_step, sparkline, time_split

METRICS = {
    "reward/mean": 0.53125, "length/mean": 41.25, "staleness/max": 1.0, "throughput/tokens_per_second": 1204.2,
    "time/step": 2.0, "time/train": 0.5, "time/rollout_wait": 1.4,
}  # fmt: skip


def test_without_a_terminal_each_step_is_one_log_line(caplog):
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, "areal"), LiveView(stream=stream) as view:
        view.plan(10)
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
        with LiveView(title="run <x> [bold]", enabled=enabled, stream=stream) as view:
            view.plan(10)
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
        "import sys; from areal.infra.metrics.live_view import LiveView\n"
        "with LiveView() as view: view.plan(2); view.update(1, {'reward/mean': 0.5})\n"
        "print('rich' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def drawn(view: LiveView) -> str:
    """What the view looks like now, as rich writes it on a terminal of 100 columns."""
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view._render())
    return console.export_text()


def test_before_the_first_step_the_view_has_the_phase_and_how_long_it_takes(clock):
    view = LiveView(title="digits/first", stream=io.StringIO(), clock=clock)
    assert "starting (0 s)" in drawn(view)
    clock.now = 4.0
    view.begin("loading the model")
    clock.now = 6.5
    text = drawn(view)
    assert "digits/first" in text
    assert "loading the model (2 s)" in text
    assert "6 s elapsed" in text
    assert "left" not in text


def test_within_a_step_the_view_has_its_samples_the_time_and_curves_with_their_range(clock):
    samples = [0]
    view = LiveView(stream=io.StringIO(), clock=clock)
    clock.now = 10.0
    view.plan(50, first_step=30, progress=lambda: (samples[0], 64))  # a run that was resumed
    assert "step 30/50" in drawn(view)
    for step in (31, 32):
        clock.now += 60.0
        view.update(step, {"reward/mean": step / 100})
    clock.now += 5.0
    samples[0] = 48
    text = drawn(view)
    assert "step 32/50" in text
    assert "episodes 48/64" in text
    assert "2 min 15 s elapsed, 17 min 55 s left" in text  # 18 steps of a minute, 5 s of which are gone
    assert "reward   ▁█ 0.320  0.31 .. 0.32, steps 31-32" in text

    view.end_steps()
    assert "finishing" in drawn(view)
    assert "episodes" not in drawn(view)


def test_a_log_says_what_takes_long_once_per_half_minute(clock):
    view = LiveView(stream=io.StringIO(), clock=clock)
    view.begin("loading the model")
    clock.now = 29.0
    assert view.heartbeat() is None
    clock.now = 31.0
    assert view.heartbeat() == "loading the model: under way for 31 s"
    assert view.heartbeat() is None
    view.plan(8, progress=lambda: (3, 16))
    clock.now = 62.0
    assert view.heartbeat() == "step 1/8, 3 of 16 episodes: under way for 31 s"
    view.update(1, {})
    assert view.heartbeat() is None
    view.begin("saving")
    clock.now = 92.0
    assert view.heartbeat() == "step 2/8, saving, 3 of 16 episodes: under way for 30 s"


def test_an_error_leaves_its_name_in_the_view(clock):
    view = LiveView(stream=io.StringIO(), clock=clock)
    with pytest.raises(ValueError, match="x"), view:
        raise ValueError("x")
    assert "ended by ValueError" in drawn(view)


def test_times_and_ranges_are_written_for_people():
    assert [format_seconds(value) for value in (0.9, 59.9, 61, 3600, 7620)] == [
        "0 s", "59 s", "1 min 01 s", "1 h 00 min", "2 h 07 min",
    ]  # fmt: skip
    assert axis([(3, 0.5), (9, math.nan), (12, 0.25)]) == "  0.25 .. 0.5, steps 3-12"
    assert axis([(3, math.nan)]) == "  steps 3-3"


@pytest.mark.exhaustive
def test_the_view_is_drawn_before_torch_is_loaded(tmp_path):
    """In a process that cannot load torch at all, as one in which that takes long."""
    import subprocess

    root = Path(__file__).resolve().parents[4]
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from areal.cli.main import main\n"
        f"sys.exit(main(['train', 'examples/math/arithmetic_sft.yaml', 'output_dir={tmp_path}', 'trial_name=größer']))"
    )
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=follower, stdout=follower, stderr=follower,
        env=os.environ | {"COLUMNS": "100"},
    )  # fmt: skip
    os.close(follower)
    drawn = b""
    try:
        while chunk := os.read(leader, 65536):
            drawn += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(leader)
    assert done.wait(timeout=60) == 2
    text = drawn.decode()
    assert text.index("arithmetic/größer") < text.index("starting (0 s)") < text.index("areal[train]")


def test_a_notebook_gets_one_display_that_is_replaced_and_keeps_the_final_state(monkeypatch, clock):
    """The messages of IPython are recorded; tests/areal/trainer/test_notebook.py has a real kernel."""
    sent = []

    class Handle:
        def update(self, bundle, *, raw):
            sent.append(("update", bundle["text/plain"], bundle["text/html"], raw))

    def display(bundle, *, raw, display_id):
        sent.append(("display", bundle["text/plain"], bundle["text/html"], display_id))
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython, ipython.display = lambda: shell, types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    with LiveView(title="<b>run", clock=clock) as view:
        drawn_again = view._live._update
        view.plan(2)
        drawn_again()
        drawn_again()  # nothing changed
        view.update(2, METRICS)
    assert [kind for kind, *_ in sent] == ["display", "update", "update"]
    assert "starting" in sent[0][1]
    assert "first step" in sent[1][1]
    assert "step 2/2" in sent[2][1]
    assert "done" in sent[2][1]
    assert "0.531" in sent[2][2]
    assert "<b>run" not in sent[2][2], "a title is text"
    assert sent[2][2].startswith("<pre")
    assert view._live is None
