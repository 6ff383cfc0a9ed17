"""What a user can do wrong, and what a machine can do to a run: each ends with a clear message and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import runs

from areal.api import BusyError, CheckpointError, ConfigError, DataError, RegistryError, RolloutError
from areal.cli.main import main
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.metrics.logger import read_metrics
from areal.trainer.configuration.source import dump_yaml
from areal.trainer.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

REWARDS = """
import os, time

def raises(prompt, completions, prompt_ids, completion_ids, **data):
    raise RuntimeError("judge is down")

def hangs(prompt, completions, prompt_ids, completion_ids, **data):
    time.sleep(3600)

def gives_none(prompt, completions, prompt_ids, completion_ids, **data):
    return None

def gives_nan(prompt, completions, prompt_ids, completion_ids, **data):
    return float("nan")

def fails_sometimes(prompt, completions, prompt_ids, completion_ids, **data):
    if sum(completion_ids) % 3 == 0:
        raise ValueError("unlucky")
    return 1.0
"""


@pytest.fixture
def reward_module(tmp_path, monkeypatch):
    """Name of an importable module with the rewards above."""
    (tmp_path / "user_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "user_rewards"


@pytest.mark.fault(
    row=15,
    injected="in a whole run every reward raises, hangs, or returns NaN or None",
    seen="stops after the tolerated number with kinds and reasons",
)
@pytest.mark.parametrize(
    ("function", "kind", "hint"),
    [
        pytest.param("gives_nan", "reward_invalid", "nan", marks=pytest.mark.exhaustive),
        pytest.param("gives_none", "reward_invalid", "None", marks=pytest.mark.exhaustive),
        pytest.param("hangs", "reward_timeout", "killed", marks=pytest.mark.exhaustive),
        ("raises", "reward_raised", "judge is down"),
    ],
)
def test_a_reward_that_always_fails_stops_the_run_with_the_reasons(tmp_path, reward_module, function, kind, hint):
    config = runs.tiny(
        tmp_path / "run",
        reward=f"{reward_module}:{function}",
        rollout__batch_size=1,
        rollout__group_size=2,
        rollout__max_retries=1,
        rollout__max_consecutive_failures=2,
        rollout__reward_timeout_seconds=0.3 if function == "hangs" else 60.0,
    )
    with pytest.raises(RolloutError) as caught:
        runs.train(config)
    assert kind in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=12,
    injected="in a whole run every third answer makes the reward raise",
    seen="only those samples are lost, none becomes a score of 0; advantages of the incomplete groups stay finite "
    "and the run ends",
)
def test_a_reward_that_fails_sometimes_loses_only_its_samples(tmp_path, reward_module):
    config = runs.tiny(
        tmp_path / "run",
        reward=f"{reward_module}:fails_sometimes",
        rollout__min_group_size=1,
        rollout__max_retries=0,
        rollout__max_consecutive_failures=100,
    )
    summary, _ = runs.train(config)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert summary["finished"]
    assert sum(row.get("rollout/faults/reward_raised", 0) for row in metrics.values()) > 0
    # The survivors all scored 1; a failure counted as 0 would pull the mean down.
    assert all(row["reward/mean"] == 1.0 for row in metrics.values())


@pytest.mark.fault(
    row=15,
    injected="a run stops because its reward fails, and is started again with a mended one",
    seen="continues from the steps it had",
)
def test_a_failed_run_keeps_its_checkpoint_and_goes_on_when_the_reward_is_mended(tmp_path, reward_module):
    directory = tmp_path / "run"
    changes = {"reward": f"{reward_module}:raises", "rollout__max_consecutive_failures": 1, "rollout__max_retries": 0}
    runs.train(runs.tiny(directory, total_train_steps=2, checkpoint__every_steps=1))
    with pytest.raises(RolloutError):
        runs.train(runs.tiny(directory, checkpoint__allow_config_change=True, checkpoint__every_steps=1, **changes))
    assert CheckpointStore(directory / "checkpoints", keep=2).load_latest().step == 2
    summary, _ = runs.train(runs.tiny(directory, checkpoint__allow_config_change=True, checkpoint__every_steps=1))
    assert summary["steps"] == 4


@pytest.mark.sample(3)
@pytest.mark.fault(
    row=33,
    injected="names, options and combinations that cannot train",
    seen="refused before anything is sampled, with the nearest name or the fix",
)
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"reward": "exakt"}, RegistryError, "did you mean 'exact'"),
        ({"reward": ""}, ConfigError, "reward is required"),
        ({"workflow": "rlrv"}, RegistryError, "did you mean 'rlvr'"),
        ({"train_dataset__name": "arithmetik"}, RegistryError, "did you mean"),
        ({"train_dataset__options": {"answer_colum": "x"}}, ConfigError, "answer_column"),
        ({"train_dataset__max_length": 1}, DataError, "max_length"),
        ({"objective__preset": "ppo"}, ConfigError, "critic"),
        ({"critic": {"lr": 1e-3}}, ConfigError, "critic"),
        ({"model__tokenizer_path": "bytes:"}, ConfigError, "embeddings"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_sampled(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        runs.train(runs.tiny(tmp_path / "run", **changes))
    assert not read_metrics(tmp_path / "run" / "metrics.jsonl")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "0 rows left"),
        ([{"question": "1+1="}], "prompt"),
        ([{"prompt": "1+1=", "answer": "2"}, {"prompt": "", "answer": "2"}], "row 2|row 1|line 2"),
    ],
)
def test_bad_rows_are_named(tmp_path, lines, message):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=message):
        runs.train(runs.tiny(tmp_path / "run", train_dataset__name="jsonl", train_dataset__path=str(path)))


def test_many_prompts_longer_than_the_context_are_no_faults_and_stop_no_run(tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    # More in a row than max_consecutive_failures, if each were a fault.
    rows = [{"prompt": "1+" * 40 + "1=", "answer": "41"}] * 40 + [{"prompt": "1+1=", "answer": "2"}] * 2
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = runs.tiny(
        tmp_path / "run", train_dataset__name="jsonl", train_dataset__path=str(path), train_dataset__shuffle=False,
        rollout__batch_size=2, total_train_steps=1,
    )  # fmt: skip
    summary, _ = runs.train(config)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert summary["finished"]
    assert sum(row.get("rollout/faults/data_invalid", 0) for row in metrics.values()) == 0
    found = "dropped 40 of 42 rows with more than 60 tokens (engine.max_seq_len 64 - max_new_tokens 4), e.g. row 0"
    assert found in caplog.text


@pytest.mark.exhaustive
def test_a_fault_names_dataset_row_and_line(tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    rows = [{"prompt": "1+1=", "answer": "2"}] * 2 + [{"prompt": "1+2=", "answer": "3"}] * 2
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    config = runs.tiny(
        tmp_path / "run", train_dataset__name="jsonl", train_dataset__path=str(path), train_dataset__shuffle=False,
        rollout__batch_size=2, total_train_steps=1, reward="refusing:reward", rollout__max_consecutive_failures=1,
        rollout__max_retries=0,
    )  # fmt: skip
    (tmp_path / "refusing.py").write_text(
        "def reward(prompt, *_, **__):\n    assert prompt != '1+2='\n    return 1.0\n"
    )
    sys.path.append(str(tmp_path))
    try:
        runs.train(config)
        with pytest.raises(RolloutError) as caught:
            runs.train(runs.replace(config, output_dir=str(tmp_path / "second"), total_train_steps=2))
    finally:
        sys.path.remove(str(tmp_path))
    # Faults are named when they happen, whichever of the two bad rows is scored first.
    places = [f"prompt {row}, dataset jsonl, row {row} ({path}, line {2 * row + 1}), sample" for row in (2, 3)]
    assert any(f"first fault of kind reward_raised, at {place}" in caplog.text for place in places)
    assert "reward 'reward (refusing:reward)' raised AssertionError" in caplog.text
    assert any(f"(at {place}" in str(caught.value) for place in places)


@pytest.mark.fault(
    row=24,
    injected="two sessions open one run directory",
    seen="the second is refused with the pid of the first",
)
def test_two_runs_cannot_share_a_directory(tmp_path):
    config = runs.tiny(tmp_path / "run")
    with open_session(config), pytest.raises(BusyError, match=f"pid {os.getpid()}"), open_session(config):
        pass


@pytest.mark.fault(
    row=3,
    injected="the checkpoint folder becomes a file during a run",
    seen="training goes on with an alarm each time and gives up after three saves in a row",
)
def test_a_run_goes_on_when_checkpoints_cannot_be_written_and_gives_up_after_a_few(tmp_path, caplog):
    folder = tmp_path / "run" / "checkpoints"

    def lose_the_folder(step, trajectories):
        if step == 1:
            shutil.rmtree(folder)
            folder.write_text("no longer a folder")
        return list(trajectories)

    changes = {"total_train_steps": 6, "checkpoint__every_steps": 1, "checkpoint__max_write_failures": 3}
    with pytest.raises(CheckpointError, match="3 saves in a row failed"):
        runs.train(runs.tiny(tmp_path / "run", **changes), transform_rewards=lose_the_folder)
    assert list(read_metrics(tmp_path / "run" / "metrics.jsonl")) == [1, 2, 3, 4]
    assert "training goes on (1 of 3 tolerated failures)" in caplog.text


def wait_for_steps(directory: Path, count: int, returncode: Callable[[], int | None]) -> None:
    deadline = time.monotonic() + 200  # on a machine that many use
    while time.monotonic() < deadline:
        path = directory / "metrics.jsonl"
        if path.exists() and len(read_metrics(path)) >= count:
            return
        assert returncode() is None, "the run ended"
        time.sleep(0.02)
    raise AssertionError("the run did not get going")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.fault(
    row=1,
    injected="SIGKILL of the `areal train` that `areal launch` started",
    seen="started again after a second; it takes over the run directory, continues from its checkpoint and ends with "
    "the weights of an undisturbed run",
)
@pytest.mark.timeout(400)
def test_a_launched_run_that_is_killed_goes_on_by_itself(tmp_path):
    changes = {"total_train_steps": 40, "checkpoint__every_steps": 3}
    straight, _ = runs.train(runs.tiny(tmp_path / "straight", **changes))
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(runs.tiny(tmp_path / "run", **changes)))
    areal = [sys.executable, "-m", "areal"]
    options = ["--log-folder", str(tmp_path / "logs"), "--json", "--", *areal, "train", str(path)]
    launch = subprocess.Popen([*areal, "launch", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(tmp_path / "run", 4, launch.poll)
    owner = json.loads((tmp_path / "run" / "run.lock").read_text())
    os.kill(owner["pid"], signal.SIGKILL)
    output, errors = launch.communicate(timeout=300)
    assert launch.returncode == 0, errors
    assert [start["status"] for start in json.loads(output)["starts"]] == [137, 0]
    assert f"took over {tmp_path / 'run' / 'run.lock'} from pid {owner['pid']}" in errors
    weights = [
        Path(folder, "model.safetensors").read_bytes()
        for folder in (straight["checkpoint"], tmp_path / "run" / "final")
    ]
    assert weights[0] == weights[1]
    assert list(read_metrics(tmp_path / "run" / "metrics.jsonl")) == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.fault(
    row=24,
    injected="a second `areal train` on the directory of a running one",
    seen="refused with pid and host of the first, exit code 75; the first is not disturbed",
)
@pytest.mark.fault(
    row=25,
    injected="SIGTERM to `areal train` in the middle of a run",
    seen="finishes its step, saves, exits with 143; no process that names the run is left",
)
def test_a_second_run_is_refused_and_sigterm_saves_and_exits_143_without_orphans(tmp_path, fork_server, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(runs.tiny(tmp_path / "run", total_train_steps=100_000)))
    process = fork_server.start("areal", ["train", str(path), "--json"])
    wait_for_steps(tmp_path / "run", 2, lambda: process.returncode)
    assert main(["train", str(path), "--json"]) == 75
    refusal = json.loads(capsys.readouterr().out)["error"]
    assert f"pid {process.pid} on host {socket.gethostname()}" in refusal
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, process.stderr
    summary = json.loads(process.stdout)["summary"]
    assert not summary["finished"]
    assert CheckpointStore(tmp_path / "run" / "checkpoints", keep=2).load_latest().step == summary["steps"]
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert running == ""
