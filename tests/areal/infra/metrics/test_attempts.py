"""Attempts at a run: nothing logged is ever removed, readers take the newest values, TensorBoard has each step once."""

from __future__ import annotations

import json

import pytest

from areal.api import PromptGroup, StopReason, Trajectory
from areal.infra.metrics.attempts import current_lines, read_attempts
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.jsonl import load_rollouts, read_rollouts
from areal.infra.metrics.logger import MetricLogger, read_metrics, series


def group(ordinal):
    sample = Trajectory(
        tokens=[5, 6], loss_mask=[0, 1], logprobs=[0, -1.0], versions=[-1, 0], turn_ids=[-1, 0], reward=1.0,
        stop_reason=StopReason.STOP, text={"prompt": "1+1=", "completion": "2"},
    )  # fmt: skip
    return PromptGroup(ordinal=ordinal, admitted_version=0, trajectories=(sample,))


def attempt(folder, first_step, values, **settings):
    """Log `values` by step, each with a prompt."""
    with MetricLogger(folder, MetricsConfig(**settings), first_step=first_step) as metrics:
        for step, value in values.items():
            metrics.log(step, {"reward": value})
            metrics.log_rollouts(step, [group(int(value))])


@pytest.fixture
def run(tmp_path):
    """Steps 0 to 5; then 4 to 6 again, killed; then 3 and 4 again, from an older checkpoint."""
    attempt(tmp_path, 0, {step: step for step in range(6)})
    attempt(tmp_path, 4, {step: 10 + step for step in (4, 5, 6)})
    attempt(tmp_path, 3, {3: 23, 4: 24})
    return tmp_path


def test_readers_take_the_newest_values_and_every_line_is_still_there(run):
    assert series(read_metrics(run / "metrics.jsonl"), "reward") == [(0, 0), (1, 1), (2, 2), (3, 23), (4, 24)]
    assert [one.ordinal for one in read_rollouts(run / "rollouts.jsonl")] == [0, 1, 2, 23, 24]
    assert [one["ordinal"] for one in load_rollouts(run / "rollouts.jsonl").groups] == [0, 1, 2, 23, 24]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines if "reward" in line] == [0, 1, 2, 3, 4, 5, 14, 15, 16, 23, 24]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, [(step, step) for step in range(6)]),
        (2, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 14), (5, 15), (6, 16)]),
        (3, [(0, 0), (1, 1), (2, 2), (3, 23), (4, 24)]),
    ],
)
def test_older_attempts_can_be_read_as_they_were(run, number, expected):
    assert series(read_metrics(run / "metrics.jsonl", attempt=number), "reward") == expected
    ordinals = [one["ordinal"] for one in load_rollouts(run / "rollouts.jsonl", attempt=number).groups]
    assert ordinals == [value for _, value in expected]


def test_attempts_are_numbered_and_share_the_id_of_their_run(run, tmp_path_factory):
    found = read_attempts(run / "metrics.jsonl")
    assert [(one.number, one.first_step) for one in found] == [(1, 0), (2, 4), (3, 3)]
    assert len({one.run_id for one in found}) == 1
    assert read_attempts(run / "rollouts.jsonl") == found
    other = tmp_path_factory.mktemp("other")
    attempt(other, 0, {0: 0})
    assert read_attempts(other / "metrics.jsonl")[0].run_id != found[0].run_id


def test_an_attempt_that_logs_nothing_leaves_no_trace(run):
    before = [(run / name).read_bytes() for name in ("metrics.jsonl", "rollouts.jsonl")]
    with MetricLogger(run, MetricsConfig(), first_step=0) as metrics:
        assert metrics.attempt.number == 4
    assert [(run / name).read_bytes() for name in ("metrics.jsonl", "rollouts.jsonl")] == before


def test_a_file_from_before_there_were_markers_is_the_first_attempt(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step":1,"reward":1.0}\n{"reward":2.0,"step":2}\n{"step":3,"reward":3.0}\n')
    assert series(read_metrics(file), "reward") == [(1, 1), (2, 2), (3, 3)]
    attempt(tmp_path, 2, {2: 20})
    assert series(read_metrics(file), "reward") == [(1, 1), (2, 20)]
    assert [one.number for one in read_attempts(file)] == [1, 2]


def test_what_is_logged_twice_by_one_attempt_adds_up(tmp_path):
    with MetricLogger(tmp_path, MetricsConfig()) as metrics:
        metrics.log(1, {"reward": 1.0})
        metrics.log(1, {"eval/reward": 2.0})
    values = read_metrics(tmp_path / "metrics.jsonl")[1]
    assert (values["reward"], values["eval/reward"]) == (1.0, 2.0)


@pytest.mark.parametrize("torn", [b"", b'{"step":9,"rew', b'{"attempt":2,"fir'])
def test_an_empty_file_and_a_torn_line_have_no_attempt(tmp_path, torn):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(torn)
    assert read_attempts(file) == []
    assert list(current_lines(file)) == [torn][: len(torn)]
    assert read_metrics(file) == {}
