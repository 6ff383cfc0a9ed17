"""metrics.jsonl and rollouts.jsonl: whole lines, kills, resuming."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal.api import ConfigError, Fault, FaultKind, PromptGroup, StopReason, Trajectory
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.jsonl import JsonLines, expand, read_rollouts, run_lengths, token_pieces
from areal.infra.metrics.logger import MetricLogger, read_metrics, series

ROOT = Path(__file__).resolve().parents[4]


def group(ordinal=3, count=2):
    samples = tuple(
        Trajectory(
            tokens=[5, 6, 7, 8, 9], loss_mask=[0, 0, 1, 0, 1], logprobs=[0, 0, -0.123456, 0, -2.0],
            versions=[-1, -1, 4, -1, 5], turn_ids=[-1, -1, 0, -1, 1], reward=0.5 * index, stop_reason=StopReason.LENGTH,
            sample_index=index, reward_components={"format": 1.0, "odd": math.inf},
            text={"prompt": "8*9=", "completion": "72"},
        )
        for index in range(count)
    )  # fmt: skip
    fault = Fault(kind=FaultKind.REWARD_TIMEOUT, message="15 s", attempt=1)
    return PromptGroup(ordinal=ordinal, admitted_version=4, trajectories=samples, faults=(fault,))


def test_each_call_is_one_line_on_disk_before_it_returns(tmp_path):
    with MetricLogger(tmp_path, MetricsConfig()) as metrics:
        metrics.log(0, {"reward/mean": 0.25})
        line = (tmp_path / "metrics.jsonl").read_text()
        assert line.endswith("\n")
        record = json.loads(line.splitlines()[-1])
        assert (record["step"], record["reward/mean"]) == (0, 0.25)
        assert abs(record["time"] - time.time()) < 60


def test_values_of_one_step_add_up_and_numbers_json_lacks_survive(tmp_path):
    with MetricLogger(tmp_path, MetricsConfig()) as metrics:
        metrics.log(1, {"a": math.inf, "b": -math.inf, "c": math.nan})
        metrics.log(1, {"eval/test/avg@1": 1})
    values = read_metrics(tmp_path / "metrics.jsonl")[1]
    assert (values["a"], values["b"], values["eval/test/avg@1"]) == (math.inf, -math.inf, 1.0)
    assert math.isnan(values["c"])
    # Strict readers (JavaScript, jq) must manage as well.
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("name", ["step", "time"])
def test_reserved_names_are_refused(tmp_path, name):
    with MetricLogger(tmp_path, MetricsConfig()) as metrics, pytest.raises(ValueError, match="reserved"):
        metrics.log(0, {name: 1.0})


@pytest.mark.parametrize("torn", [b'{"step":2,"rew', b'{"step":2,"reward":1}', b"\x00" * 70000])
def test_a_torn_last_line_is_skipped_by_readers_and_put_aside_by_the_next_writer(tmp_path, torn, caplog):
    file = tmp_path / "metrics.jsonl"
    whole = b'{"step":0,"reward":0.5}\n{"step":1,"reward":1.0}\n'
    file.write_bytes(whole + torn)
    assert list(read_metrics(file)) == [0, 1]
    with MetricLogger(tmp_path, MetricsConfig(), first_step=2) as metrics:
        assert f"moved {len(torn)} bytes" in caplog.text
        metrics.log(2, {"reward": 2.0})
    assert file.read_bytes().startswith(whole)
    assert (tmp_path / "metrics.jsonl.torn").read_bytes() == torn + b"\n"
    assert series(read_metrics(file), "reward") == [(0, 0.5), (1, 1.0), (2, 2.0)]


def test_every_torn_line_is_kept(tmp_path):
    for torn in (b"{", b'{"a'):
        (tmp_path / "x.jsonl").write_bytes(torn)
        JsonLines(tmp_path / "x.jsonl").close()
        assert (tmp_path / "x.jsonl").read_bytes() == b""
    assert (tmp_path / "x.jsonl.torn").read_bytes() == b'{\n{"a\n'


@pytest.mark.fault(
    row=32,
    injected="SIGKILL while metrics are written",
    seen="only whole lines, in order",
)
def test_a_killed_writer_leaves_only_whole_lines_in_order(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from areal.infra.metrics.logger import MetricLogger; from areal.infra.metrics.config import MetricsConfig\n"
        "m = MetricLogger(Path(sys.argv[1]), MetricsConfig()); step = 0\n"
        "while True:\n    m.log(step, {'value': float(step)}); step += 1\n"
        "    if step == 50: print('ready', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    process.stdout.close()
    values = series(read_metrics(tmp_path / "metrics.jsonl"), "value")
    assert len(values) >= 50
    assert values == [(step, float(step)) for step in range(len(values))]


@pytest.mark.fault(
    row=32,
    injected="the disk refuses metrics.jsonl, for a while or to the end, and rollouts.jsonl",
    seen="numbers are kept and written in order when the disk takes them again, and counted when it never does; "
    "samples shown to people are left out with a warning",
)
def test_lines_that_a_full_disk_refuses_are_written_later(tmp_path, caplog):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    metrics = MetricLogger(tmp_path, MetricsConfig())
    metrics.log(0, {"a": 0.0})
    healthy = os.dup(metrics._metrics._descriptor)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, metrics._metrics._descriptor)
    for step in (1, 2):
        metrics.log(step, {"a": float(step)})
    assert caplog.text.count("cannot be written") == 1
    os.dup2(healthy, metrics._metrics._descriptor)
    metrics.log(3, {"a": 3.0})
    assert series(read_metrics(tmp_path / "metrics.jsonl"), "a") == [(step, float(step)) for step in range(4)]
    os.dup2(full, metrics._metrics._descriptor)
    metrics.log(4, {"a": 4.0})
    os.dup2(full, metrics._rollouts._descriptor)
    metrics.log_rollouts(0, [group()])
    metrics.log_rollouts(1, [group()])
    assert caplog.text.count("rollouts.jsonl cannot be written") == 1
    for descriptor in (healthy, full):
        os.close(descriptor)
    with contextlib.suppress(OSError):  # /dev/full cannot be flushed
        metrics.close()
    assert "1 lines of metrics.jsonl are lost" in caplog.text


def test_rollouts_survive_the_round_trip(tmp_path):
    with MetricLogger(tmp_path, MetricsConfig(), decode=lambda ids: "".join(chr(96 + i) for i in ids)) as metrics:
        metrics.log_rollouts(7, [group()])
    (read,) = read_rollouts(tmp_path / "rollouts.jsonl")
    assert (read.step, read.ordinal, read.admitted_version) == (7, 3, 4)
    assert read.faults == ({"kind": "reward_timeout", "message": "15 s", "attempt": 1},)
    sample = read.samples[1]
    assert (sample.index, sample.reward, sample.stop) == (1, 0.5, "length")
    assert sample.num_prompt_tokens == 2
    assert sample.tokens == (7, 8, 9)
    assert sample.versions == (4, -1, 5)
    assert sample.logprobs == (-0.1235, 0.0, -2.0)
    assert "".join(sample.pieces) == "ghi"
    assert sample.components == {"format": 1.0, "odd": math.inf}
    assert sample.text["completion"] == "72"


def test_only_as_many_groups_are_kept_as_configured(tmp_path):
    for count in (0, 2):
        with MetricLogger(tmp_path / str(count), MetricsConfig(rollouts_per_step=count)) as metrics:
            metrics.log_rollouts(0, [group(ordinal=index) for index in range(5)])
        assert [entry.ordinal for entry in read_rollouts(tmp_path / str(count) / "rollouts.jsonl")] == list(
            range(count)
        )


def test_closing_twice_is_harmless_and_writing_after_it_is_an_error(tmp_path):
    metrics = MetricLogger(tmp_path, MetricsConfig())
    metrics.close()
    metrics.close()
    with pytest.raises(ValueError, match="after close"):
        metrics.log(0, {"a": 1.0})


@given(st.lists(st.integers(-1, 4)))
def test_run_lengths_expand_to_what_they_came_from(values):
    assert expand(run_lengths(values)) == tuple(values)


@given(st.text(max_size=40))
def test_token_pieces_join_to_the_whole_text_even_when_tokens_cut_characters(text):
    tokens = list(text.encode())  # one token per byte: every character outside ASCII is cut
    pieces = token_pieces(tokens, lambda ids: bytes(ids).decode(errors="replace"))
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == text


def test_a_negative_number_of_rollouts_to_keep_is_refused():
    with pytest.raises(ConfigError, match="rollouts_per_step is -1, expected >= 0"):
        MetricsConfig(rollouts_per_step=-1)
