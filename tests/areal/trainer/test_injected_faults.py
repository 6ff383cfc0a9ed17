"""Faults injected into whole runs: each run goes on, loses what it must and no more, and says what happened."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import runs
import torch

from areal.api import ConfigError, EngineError, RolloutError
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.metrics.logger import read_metrics
from areal.trainer.configuration.source import load_config
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session
from areal.trainer.sft import SFTTrainer

SMALL = {"rollout__batch_size": 2, "rollout__group_size": 2, "total_train_steps": 4}
VALIDATION = {
    "eval_sets": {"held": {"dataset": {"name": "jsonl", "path": str(runs.ROWS)}, "rows": 2}},
    "eval_every_steps": 1,
}

USER_CODE = '''
import os, re, time

from areal.api import ConfigError
from areal.workflow.rlvr import RLVRWorkflow


def hostile(prompt, completions, prompt_ids, completion_ids, **data):
    """What a reward can do to the machine, by the length of the answer; 1 where it does nothing."""
    kind = sum(completion_ids) % 7
    open(os.path.join(os.environ["HOSTILE_NOTES"], str(kind)), "w").close()
    if kind == 1:
        re.match(r"(a+)+$", "a" * 64 + "b")  # never returns, never releases the interpreter
    elif kind == 2:
        for _ in range(6):
            os.fork()  # 64 processes
        time.sleep(3600)
    elif kind == 3:
        bytearray(10 << 30)
    elif kind == 4:
        os.kill(os.getpid(), 11)
    return 1.0


def dies_three_times(prompt, completions, prompt_ids, completion_ids, **data):
    """The process is killed in the middle of three calls; the others take different times."""
    time.sleep(0.02 * (sum(completion_ids) % 5))
    for number in range(3):
        try:
            os.close(os.open(os.path.join(os.environ["DEATHS"], str(number)), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), 9)
    return float(completions == data["answer"])


def constant(prompt, completions, prompt_ids, completion_ids, **data):
    return 0.5


def hangs_after_a_while(prompt, completions, prompt_ids, completion_ids, **data):
    if os.path.exists(os.environ["HANG_WHEN_EXISTS"]):
        time.sleep(3600)
    return float(completions == data["answer"])


class BreaksInEvaluation(RLVRWorkflow):
    """Answers two evaluations of two rows, then ends every further one; training is left alone."""

    def __init__(self, reward, gconfig, tokenizer):
        super().__init__(reward, gconfig, tokenizer)
        self.evaluated = 0

    async def arun_episode(self, engine, data):
        self.evaluated += self.gconfig.greedy
        if self.evaluated > 4:
            raise ConfigError("the judge of the validation rows has moved")
        return await super().arun_episode(engine, data)
'''


@pytest.fixture
def user_code(tmp_path, monkeypatch):
    """Name of a module that the run and its reward processes can import."""
    (tmp_path / "hostile_code.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "hostile_code"
    sys.modules.pop("hostile_code", None)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Parameters after a run of SMALL that nothing happened to."""
    return runs.train(runs.tiny(tmp_path_factory.mktemp("straight") / "run", **SMALL))[1]


def assert_equal_bits(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def metrics_of(directory):
    return read_metrics(directory / "metrics.jsonl")


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=4,
    injected="one bit of the newest checkpoint's tensors flipped between two starts of a run",
    seen="the hash mismatch is logged with the file's name; the run continues from the checkpoint before, to the "
    "bits of an uninterrupted run",
)
def test_a_flipped_bit_costs_one_checkpoint_and_not_the_run(tmp_path, straight, caplog):
    config = runs.tiny(tmp_path / "run", **SMALL | {"total_train_steps": 3, "checkpoint__every_steps": 1})
    runs.train(config)
    newest = CheckpointStore(tmp_path / "run" / "checkpoints", keep=2).load_latest().path
    victim = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[-5] ^= 1
    victim.write_bytes(content)
    with caplog.at_level(logging.INFO):
        summary, weights = runs.train(replace(config, total_train_steps=4))
    assert f"file '{victim.name}' is corrupt" in caplog.text
    assert "continuing from step 2" in caplog.text
    assert summary["steps"] == 4
    assert_equal_bits(weights, straight)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=3,
    injected="the run's real file system (tmpfs) is filled in step 3 and emptied in step 6; saves are due each 3 steps",
    seen="the failed save is reported and training goes on; it is tried again 1 and 2 steps later and succeeds long "
    "before the next regular one; a disk that stays full ends the run with exit code 21 after the tolerated failures",
)
@pytest.mark.timeout(300)
def test_a_run_outlives_a_full_disk(tmp_path):
    command = ["unshare", "--mount", sys.executable, str(Path(__file__).with_name("full_disk_training.py"))]
    done = subprocess.run([*command, str(tmp_path)], check=False, capture_output=True, text=True, timeout=200)
    if "not permitted" in done.stderr and done.returncode == 77:
        pytest.skip("mounting a small file system is not permitted here")
    assert done.returncode == 0, done.stderr
    assert "emptied: saved at [6, 8], finished True, metrics of steps [1, 2, 3, 4, 5, 6, 7, 8]" in done.stdout
    assert "full for good: CheckpointError, exit code 21: 3 saves in a row failed" in done.stdout
    assert "next attempt at the latest after step 4" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=29,
    injected="a row of the dataset file edited between two starts of a run; paths, counts and configuration stay equal",
    seen="refused before anything is sampled; goes on with checkpoint.allow_config_change=true",
)
def test_other_rows_under_the_same_name_are_noticed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+2=", "answer": "4"}\n')
    data = {"train_dataset__name": "jsonl", "train_dataset__path": str(path)}
    config = runs.tiny(tmp_path / "run", **SMALL | data | {"total_train_steps": 1})
    runs.train(config)
    path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+3=", "answer": "5"}\n')
    longer = replace(config, total_train_steps=2)
    with pytest.raises(ConfigError, match="other rows than those the checkpoint of step 1 was trained on"):
        runs.train(longer)
    accepted = replace(longer, checkpoint=replace(config.checkpoint, allow_config_change=True))
    assert runs.train(accepted)[0]["steps"] == 2


# -- rewards and rollouts ----------------------------------------------------------------------------------------------


def reward_processes():
    """Command lines of living reward workers of this process."""
    listed = subprocess.run(
        ["pgrep", "-af", f"_worker.py [0-9]+ {os.getpid()}$"], check=False, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=13,
    injected="a reward that, by sample, loops in C without releasing the interpreter, forks 64 processes that sleep, "
    "allocates 10 GB, or crashes with SIGSEGV",
    seen="each ends its own sample only: killed at the limit or failed by it, and counted; the other samples keep "
    "their reward, the run finishes, no process is left",
)
def test_a_hostile_reward_ends_its_own_samples_only(tmp_path, user_code, monkeypatch):
    notes, alive = tmp_path / "notes", []
    notes.mkdir()
    monkeypatch.setenv("HOSTILE_NOTES", str(notes))

    def look(step, trajectories):
        alive.append(len(reward_processes()))
        return list(trajectories)

    config = runs.tiny(
        tmp_path / "run",
        **SMALL | {"rollout__group_size": 6},
        reward=f"{user_code}:hostile",
        rollout__reward_timeout_seconds=0.5,
        rollout__reward_memory_mb=2048,
        rollout__reward_workers=2,
        rollout__max_retries=0,
        rollout__min_group_size=1,
        rollout__max_consecutive_failures=100,
    )
    summary, _ = runs.train(config, transform_rewards=look)
    assert {path.name for path in notes.iterdir()} >= {"1", "2", "3", "4"}
    metrics = metrics_of(tmp_path / "run")
    faults = {
        kind: sum(row.get(f"rollout/faults/{kind}", 0) for row in metrics.values())
        for kind in ("reward_timeout", "reward_raised")
    }
    assert summary["finished"]
    assert all(number > 0 for number in faults.values()), faults
    # The survivors all scored 1; a failure counted as 0 would pull the mean down.
    assert {row["reward/mean"] for row in metrics.values()} == {1.0}
    # Two workers, each with its guard; never the 64 of a bomb.
    assert 0 < max(alive) <= 4
    assert reward_processes() == []


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=30,
    injected="reward processes killed in the middle of three calls of a run, so that the answers are lost; the others "
    "arrive in random order",
    seen="the calls are made again; every sample of every prompt is trained exactly once, in batches of the right size",
)
def test_lost_and_reordered_answers_lose_and_repeat_no_sample(tmp_path, user_code, monkeypatch):
    deaths, trained = tmp_path / "deaths", []
    deaths.mkdir()
    monkeypatch.setenv("DEATHS", str(deaths))
    config = runs.tiny(
        tmp_path / "run",
        **SMALL | {"rollout__group_size": 4},
        reward=f"{user_code}:dies_three_times",
        rollout__max_head_offpolicyness=1,
        rollout__consume="deadline",
        rollout__reward_workers=2,
        rollout__max_retries=3,
    )

    def note(step, trajectories):
        trained.append({(item.group_id, item.sample_index) for item in trajectories})
        return list(trajectories)

    summary, _ = runs.train(config, transform_rewards=note)
    assert summary["finished"]
    assert len(list(deaths.iterdir())) == 3
    assert sum(row.get("rollout/faults/reward_died", 0) for row in metrics_of(tmp_path / "run").values()) == 3
    assert [len(samples) for samples in trained] == [8] * 4
    assert len(set().union(*trained)) == 8 * 4


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=16,
    injected="a reward that is the same for every sample, with filter_zero_variance",
    seen="stops after max_filtered_batches with the reason, and keeps the state it had",
)
def test_dynamic_sampling_of_a_constant_reward_stops(tmp_path, user_code):
    config = runs.tiny(
        tmp_path / "run",
        **SMALL,
        reward=f"{user_code}:constant",
        rollout__filter_zero_variance=True,
        rollout__max_filtered_batches=3,
    )
    with pytest.raises(RolloutError, match=r"6 prompts in a row were dropped on purpose.*zero_variance"):
        runs.train(config)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", keep=1).load_latest().step == 0


@pytest.mark.fault(
    row=25,
    injected="SIGTERM while the trainer waits for rewards that never come",
    seen="the run notices within a second, saves the finished steps and reports exit code 143",
)
def test_a_run_that_waits_for_a_straggler_still_stops_within_its_grace(tmp_path, user_code, monkeypatch):
    marker = tmp_path / "hang"
    monkeypatch.setenv("HANG_WHEN_EXISTS", str(marker))
    config = runs.tiny(
        tmp_path / "run",
        **SMALL | {"total_train_steps": 100},
        reward=f"{user_code}:hangs_after_a_while",
        rollout__reward_timeout_seconds=60.0,
    )
    sent = []

    def terminate():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    def hang_after_two(step, trajectories):
        if step == 1:
            marker.touch()
            threading.Timer(0.5, terminate).start()
        return list(trajectories)

    summary, _ = runs.train(config, transform_rewards=hang_after_two)
    assert time.monotonic() - sent[0] < 30.0
    assert summary["exit_code"] == 143
    assert not summary["finished"]
    # The reward may already have been asked for the third batch when it began to hang.
    assert summary["steps"] in (2, 3)
    assert CheckpointStore(tmp_path / "run" / "checkpoints", keep=1).load_latest().step == summary["steps"]
    assert reward_processes() == []


# -- the training engine -----------------------------------------------------------------------------------------------


def train_with(config, prepare):
    """Run to the end; `prepare(trainer)` may change things first. Returns summary and parameters."""
    with open_session(config) as session, PPOTrainer(config, session) as trainer:
        prepare(trainer)
        summary = trainer.train()
        return summary, {name: tensor.clone() for name, tensor in trainer.actor.weights().items()}


@pytest.mark.fault(
    row=22,
    injected="the gradient of one matrix becomes NaN in the second of four steps",
    seen="that step is skipped and counted, the parameters stay as they were and finite, the prompts are named, the "
    "run finishes",
)
def test_a_nan_gradient_skips_its_step_and_nothing_else(tmp_path, caplog):
    config = runs.tiny(tmp_path / "run", **SMALL)
    before_and_after = []

    def poison(trainer):
        victim = next(item for item in trainer.actor.model.parameters() if item.ndim == 2)
        train_batch = trainer.actor.train_batch

        def watched(*arguments, **options):
            handle = None
            if trainer.actor.version == 1:
                handle = victim.register_hook(lambda gradient: gradient * float("nan"))
            before_and_after.append({key: value.clone() for key, value in trainer.actor.weights().items()})
            stats = train_batch(*arguments, **options)
            if handle is not None:
                handle.remove()
            return stats

        trainer.actor.train_batch = watched

    summary, weights = train_with(config, poison)
    metrics = metrics_of(tmp_path / "run")
    assert summary["finished"]
    assert [row["train/skipped_steps"] for row in metrics.values()] == [0, 1, 0, 0]
    assert_equal_bits(before_and_after[1], before_and_after[2])
    assert not torch.equal(before_and_after[2]["norm.weight"], before_and_after[3]["norm.weight"])
    assert all(bool(value.isfinite().all()) for value in weights.values())
    assert "optimizer step 1 skipped (1 in a row)" in caplog.text
    assert "of prompt groups [2, 2, 3, 3]" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=35,
    injected="torch.OutOfMemoryError in the forward pass of a run's second step, once; then at every attempt",
    seen="the batch is run again with half the tokens and the run ends within rounding of an undisturbed one; when "
    "that does not fit either, the run stops with advice",
)
@pytest.mark.parametrize("times", [1, 10])
def test_running_out_of_memory_once_costs_a_repetition(tmp_path, straight, caplog, times):
    config = runs.tiny(tmp_path / "run", **SMALL)

    def run_out(trainer):
        hidden, train_batch = trainer.actor.model.hidden, trainer.actor.train_batch
        left = 0

        def refuse(*arguments, **options):
            nonlocal left
            if left and torch.is_grad_enabled():
                left -= 1
                raise torch.OutOfMemoryError("CUDA out of memory (injected)")
            return hidden(*arguments, **options)

        def second_step(*arguments, **options):
            nonlocal left
            left = times if trainer.actor.num_steps == 1 else 0
            return train_batch(*arguments, **options)

        trainer.actor.model.hidden, trainer.actor.train_batch = refuse, second_step

    if times > 1:
        with pytest.raises(EngineError, match=r"cannot be cut further.*Lower logprob_chunk_size"):
            train_with(config, run_out)
        return
    summary, weights = train_with(config, run_out)
    assert summary["finished"]
    assert "run again with at most" in caplog.text
    assert metrics_of(tmp_path / "run")[2]["train/micro_batches"] > 1
    torch.testing.assert_close(weights, straight, atol=2e-4, rtol=0)


# -- what surrounds a run ----------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=23,
    injected="the wall clock jumps by a year, back and forth, at every look; every fsync takes 30 ms",
    seen="nothing depends on it: the run ends with the same bits, no limit fires",
)
def test_jumps_of_the_wall_clock_and_slow_disks_change_nothing(tmp_path, straight, monkeypatch, caplog):
    real_time, real_fsync = time.time, os.fsync
    looks = []

    def jumping():
        looks.append(1)
        return real_time() + (-1) ** len(looks) * 365 * 24 * 3600

    def slow(descriptor):
        time.sleep(0.03)
        real_fsync(descriptor)

    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(os, "fsync", slow)
    config = runs.tiny(tmp_path / "run", **SMALL, checkpoint__every_steps=1, rollout__stall_seconds=30)
    summary, weights = runs.train(config)
    assert len(looks) > SMALL["total_train_steps"]
    assert summary["finished"]
    assert_equal_bits(weights, straight)
    assert "no episode finished" not in caplog.text
    assert CheckpointStore(tmp_path / "run" / "checkpoints", keep=2).load_latest().step == 4


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=31,
    injected="the evaluation workflow raises from its third evaluation on",
    seen="marked as eval/failed with a traceback in the log; training ends with the bits of a run without evaluation",
)
def test_a_crash_in_evaluation_does_not_end_training(tmp_path, user_code, straight, caplog):
    config = runs.tiny(tmp_path / "run", **SMALL | VALIDATION, workflow=f"{user_code}:BreaksInEvaluation")
    summary, weights = runs.train(config)
    metrics = metrics_of(tmp_path / "run")
    assert summary["finished"]
    assert [step for step, row in metrics.items() if row.get("eval/failed")] == [2, 3, 4]
    assert "eval/held/avg@1" in metrics[1]
    assert "eval/held/avg@1" not in metrics[2]
    assert "the judge of the validation rows has moved" in caplog.text
    assert_equal_bits(weights, straight)


@pytest.mark.fault(
    row=31,
    injected="the second evaluation of a supervised run raises",
    seen="marked as eval/failed; training and the later evaluations go on",
)
def test_a_crash_in_the_evaluation_of_a_supervised_run_does_not_end_it(tmp_path):
    shared = {name: value for name, value in runs.BASE.items() if name.startswith(("model", "seed", "metrics"))}
    data = {
        "train_dataset.name": "arithmetic",
        "valid_dataset.name": "arithmetic",
        "eval_every_steps": 1,
        "eval_rows": 4,
    }
    settings = (
        shared | data | {"kind": "sft", "output_dir": str(tmp_path / "run"), "batch_size": 4, "total_train_steps": 3}
    )
    config = load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config
    calls = []
    with open_session(config) as session:
        trainer = SFTTrainer(config, session)
        evaluate = trainer.evaluate

        def break_once(count):
            calls.append(count)
            if len(calls) == 2:
                raise RuntimeError("evaluation is broken")
            return evaluate(count)

        trainer.evaluate = break_once
        summary = trainer.train()
    assert summary["finished"]
    metrics = metrics_of(tmp_path / "run")
    assert [step for step, row in metrics.items() if row.get("eval/failed")] == [1]
    assert [step for step, row in metrics.items() if "eval/loss" in row] == [0, 2, 3]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=32,
    injected="the metrics service accepts the start of a run and refuses every later connection",
    seen="switched off with one warning; metrics.jsonl has every step; parameters as without the service",
)
def test_a_metrics_service_that_goes_away_is_only_a_warning(tmp_path, straight, monkeypatch, caplog):
    class Service:
        def define_metric(self, *_, **__):
            pass

        def log(self, values):
            raise ConnectionError("service unavailable")

    def started(**_):
        return Service()

    client = types.SimpleNamespace(init=started, Settings=dict, __spec__=object())
    monkeypatch.setitem(sys.modules, "wandb", client)
    config = runs.tiny(tmp_path / "run", **SMALL, metrics__trackers__wandb__project="mine")
    summary, weights = runs.train(config)
    assert summary["finished"]
    assert list(metrics_of(tmp_path / "run")) == [1, 2, 3, 4]
    assert_equal_bits(weights, straight)
    assert caplog.text.count("is switched off for this run") == 1
