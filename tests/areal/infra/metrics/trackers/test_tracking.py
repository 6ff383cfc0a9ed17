"""Trackers: table and sections agree, a failure is announced once, a step is sent once, TensorBoard for real."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from areal.api import ConfigError, PromptGroup, StopReason, Trajectory, load
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.logger import MetricLogger, read_metrics, series
from areal.infra.metrics.trackers import tracking
from areal.infra.metrics.trackers.config import PrometheusConfig, TensorBoardConfig, TrackersConfig, WandbConfig
from areal.infra.metrics.trackers.prometheus import PrometheusTracker
from areal.infra.metrics.trackers.registry import TRACKERS
from areal.infra.metrics.trackers.tensorboard import TensorBoardTracker
from areal.infra.metrics.trackers.tracking import (
    SAMPLE_COLUMNS,
    Ending,
    TrackedRun,
    Trackers,
    TrackerState,
    open_trackers,
    problems,
    sample_rows,
    table_as_markdown,
)

CONFIG = {"seed": 7, "actor": {"lr": 1e-4, "lora": None}, "tags": ["a"]}


class Recording:
    """A tracker that keeps what it gets."""

    replaces = False

    def __init__(self, *, breaks_at: int | None = None) -> None:
        self.calls: list[tuple] = []
        self.breaks_at = breaks_at
        self.has: dict | None = None

    def known(self):
        return self.has

    def log(self, step, metrics):
        self.calls.append((step, dict(metrics)))
        if self.breaks_at == step:
            raise ConnectionError("backend is down")

    def log_samples(self, step, rows):
        self.calls.append((step, len(rows)))

    def finish(self, ending):
        self.calls.append(("finish", ending.state))


def run_in(folder, *, first_step=0):
    return TrackedRun(
        directory=folder, experiment="e", trial="t", config=CONFIG, id="12ef", first_step=first_step,
        continues=first_step > 0,
    )  # fmt: skip


def group(text="72"):
    sample = Trajectory(
        tokens=[5, 6], loss_mask=[0, 1], logprobs=[0, -0.5], versions=[-1, 4], turn_ids=[-1, 0], reward=0.5,
        stop_reason=StopReason.STOP, reward_components={"format": 1.0}, text={"prompt": "8*9=", "completion": text},
    )  # fmt: skip
    return PromptGroup(ordinal=3, admitted_version=4, trajectories=(sample,))


def test_the_table_is_sorted_and_every_entry_has_its_section_and_extra():
    assert list(TRACKERS) == sorted(TRACKERS)
    sections = {field.name for field in dataclasses.fields(TrackersConfig)} - {"samples_every_steps"}
    assert sections == set(TRACKERS)
    for name in TRACKERS:
        assert load("tracker", name, TRACKERS).package


def test_an_absent_package_is_a_problem_with_the_command(monkeypatch):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    found = dict(problems(TrackersConfig(wandb=WandbConfig(), tensorboard=TensorBoardConfig())))
    assert set(found) == {"tensorboard", "wandb"}
    assert found["wandb"] == "the package 'wandb' is not installed; run pip install 'areal[wandb]'"


def test_a_port_in_use_is_a_problem():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in PrometheusTracker.problem(PrometheusConfig(port=port))
    assert PrometheusTracker.problem(PrometheusConfig()) == ""


def test_a_folder_outside_of_the_run_is_a_problem():
    assert "below the run directory" in TensorBoardTracker.problem(TensorBoardConfig(folder="../elsewhere"))


def test_a_port_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="port is 70000"):
        PrometheusConfig(port=70000)


@pytest.mark.fault(
    row=32,
    injected="a further destination of metrics breaks",
    seen="switched off with one warning",
)
def test_a_tracker_that_breaks_is_announced_once_and_leaves_the_others_alone(tmp_path, caplog):
    broken, whole = Recording(breaks_at=2), Recording()
    trackers = Trackers({"broken": lambda: broken, "whole": lambda: whole}, TrackerState(tmp_path / "trackers.json"))
    with MetricLogger(tmp_path, MetricsConfig(), trackers=trackers) as metrics:
        for step in range(1, 5):
            metrics.log(step, {"a": float(step)})
    trackers.finish(Ending(state="finished", exit_code=0))
    trackers.finish(Ending(state="finished", exit_code=0))
    assert broken.calls == [(1, {"a": 1.0}), (2, {"a": 2.0})]
    assert whole.calls[-2:] == [(4, {"a": 4.0}), ("finish", "finished")]
    assert caplog.text.count("broken failed to log and is switched off for this run (ConnectionError") == 1
    assert series(read_metrics(tmp_path / "metrics.jsonl"), "a") == [(step, float(step)) for step in range(1, 5)]


def test_a_tracker_that_cannot_start_does_not_stop_the_run(tmp_path, caplog):
    def refuse():
        raise PermissionError("no such project")

    trackers = Trackers({"mine": refuse}, TrackerState(tmp_path / "trackers.json"))
    trackers.log(1, {"a": 1.0})
    assert trackers.active == ()
    assert "mine failed to start" in caplog.text


def test_steps_that_are_done_again_are_sent_once(tmp_path):
    path = tmp_path / "trackers.json"
    first = Recording()
    trackers = Trackers({"x": lambda: first}, TrackerState(path), samples_every_steps=2)
    for step in range(1, 5):
        trackers.log(step, {"a": float(step)})
        trackers.log_samples(step, [group()])
    trackers.log(5, {"eval/b": 1.0})  # killed between the evaluation and the numbers of step 5

    state = TrackerState.read(path)
    assert state is not None
    second = Recording()
    trackers = Trackers({"x": lambda: second}, state, samples_every_steps=2)
    for step in range(3, 7):
        if step == 5:
            trackers.log(step, {"eval/b": 1.0})
        trackers.log(step, {"a": step + 0.5})
        trackers.log_samples(step, [group()])
    assert second.calls == [(5, {"a": 5.5}), (6, {"a": 6.5}), (6, 1)]
    assert [call for call in first.calls if isinstance(call[1], int)] == [(2, 1), (4, 1)]


def test_steps_that_a_killed_process_did_not_send_come_from_the_metrics(tmp_path):
    tracker = Recording()
    tracker.has = {1: {"a"}, 2: {"eval/b"}, 4: {"a"}}
    state = TrackerState(tmp_path / "trackers.json")
    state.note(4, {"a": 4.0})  # handed over, and lost with the process: 3 was never sent
    done = {1: {"a": 1.0, "time": 9.0}, 2: {"eval/b": 5.0, "a": 2.0, "time": 9.0}}
    trackers = Trackers({"x": lambda: tracker}, state, finished=lambda: done)
    for step in range(3, 6):
        trackers.log(step, {"a": float(step)})
    assert tracker.calls == [(2, {"a": 2.0}), (3, {"a": 3.0}), (5, {"a": 5.0})]


def test_a_process_that_logs_nothing_leaves_no_trace(tmp_path):
    trackers = open_trackers(run_in(tmp_path, first_step=3), TrackersConfig(tensorboard=TensorBoardConfig()))
    trackers.finish(Ending(state="finished", exit_code=14))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_state_begins_a_new_run(tmp_path, caplog):
    path = tmp_path / "trackers.json"
    path.write_text("{")
    assert TrackerState.read(path) is None
    assert "begin a new run" in caplog.text


def test_without_trackers_nothing_is_written(tmp_path):
    trackers = open_trackers(run_in(tmp_path), TrackersConfig())
    trackers.log(1, {"a": 1.0})
    trackers.finish(Ending(state="finished", exit_code=0))
    assert list(tmp_path.iterdir()) == []


def test_configurations_are_flat_for_those_that_need_it(tmp_path):
    assert run_in(tmp_path).flat_config() == {"seed": 7, "actor.lr": 1e-4, "actor.lora": "null", "tags": '["a"]'}


def test_a_table_has_a_row_per_sample_and_long_texts_are_cut():
    (row,) = sample_rows(2, [group("x" * 5000)])
    assert dict(zip(SAMPLE_COLUMNS, row, strict=True)) == {
        "step": 2, "prompt": 3, "sample": 0, "reward": 0.5, "components": '{"format": 1.0}', "stop": "stop",
        "tokens": 1, "question": "8*9=", "answer": "x" * 4000 + " ... (1000 more characters)",
    }  # fmt: skip
    markdown = table_as_markdown(sample_rows(2, [group("a|b\nc")])).splitlines()
    assert len(markdown) == 3
    assert markdown[2].endswith("| 8*9= | a\\|b c |")


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.plugin_event_accumulator", reason="needs the tensorboard extra"
    )
    config = TrackersConfig(tensorboard=TensorBoardConfig(), samples_every_steps=1)
    for first, state in ((0, "failed"), (2, "finished")):
        trackers = open_trackers(run_in(tmp_path, first_step=first), config)
        for step in range(first + 1, first + 5):
            trackers.log(step, {"reward/mean": step + first / 100})
            trackers.log_samples(step, [group()])
        trackers.finish(Ending(state=state, exit_code=0, summary={"steps": step}))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    values = [(item.step, round(item.tensor_proto.float_val[0], 4)) for item in events.Tensors("reward/mean")]
    assert values == [(1, 1.0), (2, 2.0), (3, 3.02), (4, 4.02), (5, 5.02), (6, 6.02)]
    assert [item.step for item in events.Tensors("samples")] == [1, 2, 3, 4, 5, 6]
    classic = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="as above")
    scalars = classic.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("reward/mean")
    assert [item.step for item in scalars] == [1, 2, 3, 4, 5, 6]
    (summary,) = events.Tensors("summary")
    assert b'"state": "finished"' in summary.tensor_proto.string_val[0]
