"""A learner in a process of its own: the numbers of one process, its errors and log lines, and no end of one side is
survived by the other."""

import gc
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
import runs
import torch

from areal.algorithm.surrogates import PPO
from areal.api import ConfigError, EngineError
from areal.infra.metrics.logger import read_metrics
from areal.trainer.assembly import build_seeded
from areal.trainer.learner_process import LearnerProcess, SharedTensors
from areal.trainer.learner_start import LearnerStart
from areal.trainer.policy_models import PolicyModels, build_models
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session
from areal.utils import tracing
from areal.utils.given import PREFIX, given
from areal.utils.logging import getLogger

PROGRAM = Path(__file__).with_name("learner_processes.py")
_OF_CLOCKS = ("time", "perf/", "rollout/wait", "throughput/", "reward/exact/seconds")


def assert_equal_runs(first, second):
    """First and second: folders of runs with their final weights."""
    (one, weights), (other, others) = first, second
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    rows, other_rows = read_metrics(one / "metrics.jsonl"), read_metrics(other / "metrics.jsonl")
    assert list(rows) == list(other_rows)
    for step, row in rows.items():
        assert row.keys() == other_rows[step].keys()
        assert not {key for key in row if row[key] != other_rows[step][key] and not key.startswith(_OF_CLOCKS)}


def train(folder, *, stop_after=None, drawn=None, **changes):
    """Folder and final weights of a run. stop_after: steps before it is asked to stop. drawn: gets random numbers."""
    config = runs.tiny(folder, **changes)

    def watch(step, trajectories):
        if drawn is not None:
            drawn.append((random.random(), float(numpy.random.rand())))
        if step + 1 == stop_after:
            session.stop.request()
        return list(trajectories)

    with open_session(config) as session, PPOTrainer(config, session, transform_rewards=watch) as trainer:
        trainer.train()
        return folder, {name: tensor.clone() for name, tensor in trainer.actor.weights().items()}


def test_a_separate_learner_has_the_numbers_of_one_process_also_when_it_continues(tmp_path):
    drawn, drawn_again = [], []
    straight = train(tmp_path / "one", drawn=drawn)
    train(tmp_path / "two", separate_learner=True, stop_after=2, drawn=drawn_again)
    # The other process continues what this one saved, and this one what the other did: the same files.
    continued = train(tmp_path / "two", checkpoint__allow_config_change=True, drawn=drawn_again)
    assert_equal_runs(straight, continued)
    assert drawn == drawn_again


@pytest.mark.exhaustive
def test_random_numbers_of_the_process_that_samples_continue_as_well(tmp_path):
    def drawn(folder, stop_after=None):
        found = []

        def draw(step, trajectories):
            found.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))
            if step + 1 == stop_after:
                session.stop.request()
            return list(trajectories)

        config = runs.tiny(tmp_path / folder, separate_learner=True, total_train_steps=3)
        with open_session(config) as session, PPOTrainer(config, session, transform_rewards=draw) as trainer:
            trainer.train()
        return found

    assert drawn("one") == drawn("two", stop_after=1) + drawn("two")


def test_a_trainer_that_cannot_be_built_leaves_no_learner(tmp_path):
    config = runs.tiny(tmp_path, separate_learner=True, model__tokenizer_path=str(tmp_path / "none"))
    with open_session(config) as session:
        held, caught = [], []
        for _ in range(2):  # what the first one opens for good (the tracker of shared memory) is not a learner's
            with pytest.raises(ConfigError) as error:
                PPOTrainer(config, session)
            caught.append(error.value)  # whose traceback still holds the trainer
            gc.collect()  # what other tests left open goes now, or between the two
            held.append(len(os.listdir("/proc/self/fd")))
        assert held[1] <= held[0]
        assert all(each.where is not None for each in caught)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [
        {"objective__kl": {"coef": 0.1, "estimator": "k2"}, "objective__num_minibatches": 2},
        {"objective__prox_logp": "recompute", "actor__dtype": "bfloat16"},
        {"objective__preset": "ppo", "critic.lr": 1e-3},
    ],
    ids=["reference", "bfloat16", "critic"],
)
def test_every_kind_of_model_learns_there_as_here(tmp_path, changes):
    straight = train(tmp_path / "one", **changes)
    train(tmp_path / "two", stop_after=2, **changes)
    continued = train(tmp_path / "two", separate_learner=True, checkpoint__allow_config_change=True, **changes)
    assert_equal_runs(straight, continued)


@pytest.mark.exhaustive
def test_rollouts_that_overlap_stay_within_the_bound(tmp_path):
    folder, _ = train(tmp_path / "run", separate_learner=True, rollout__max_head_offpolicyness=1, total_train_steps=8)
    for step, row in read_metrics(folder / "metrics.jsonl").items():
        assert row["rollout/staleness_max"] <= min(1, step - 1)
        assert row["mismatch/abs_max"] < 1e-5 or row["mismatch/fresh_fraction"] < 1


@pytest.fixture(scope="module")
def started():
    with LearnerStart() as started:
        yield started


@pytest.fixture(scope="module")
def models(started, tmp_path_factory):
    config = runs.tiny(tmp_path_factory.mktemp("models"))
    from areal.trainer.assembly import tokenizer_of

    return LearnerProcess(config, started).create(build_seeded, build_models, config, tokenizer_of(config.model), 4)


def sleep(models, seconds):
    """Runs over there."""
    del models
    time.sleep(seconds)


def warn(models, text):
    """Runs over there."""
    getLogger("areal.tests").warning("%s of %d parameters", text, len(list(models.actor.model.parameters())))


def refuse(models):
    """Runs over there."""
    raise ConfigError(f"version {models.actor.version} is no good", where="actor.lr", fix="take another")


def test_errors_arrive_as_they_are_and_the_process_goes_on(models):
    with pytest.raises(ConfigError, match="version 0 is no good") as caught:
        models.run(refuse)
    assert (caught.value.where, caught.value.fix) == ("actor.lr", "take another")
    assert "in refuse" in caught.value.__notes__[0]
    assert set(models.run(PolicyModels.weights)) == set(models.local.actor.weights())


def give_back_code(models):
    """Runs over there."""
    return lambda: models


def test_an_answer_that_cannot_be_sent_is_an_error_and_the_process_goes_on(models):
    with pytest.raises((EngineError, AttributeError, pickle.PicklingError), match="give_back_code"):
        models.run(give_back_code)
    assert set(models.run(PolicyModels.weights)) == set(models.local.actor.weights())


def test_signals_to_all_processes_of_a_job_leave_the_learner_to_its_trainer(models, started):
    models.run(PolicyModels.weights)  # it runs
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(started.pid, number)
        time.sleep(0.2)
        assert set(models.run(PolicyModels.weights)) == set(models.local.actor.weights())


def test_log_lines_and_slices_of_time_are_those_of_the_run(models, started, tmp_path, caplog):
    tracing.start(tmp_path / "trace.json")
    try:
        with caplog.at_level(logging.WARNING, "areal"):
            models.run(warn, "one")
    finally:
        tracing.stop()
    assert [record.getMessage() for record in caplog.records] == ["one of 24 parameters"]
    assert '"name": "warn", "dur"' in (tmp_path / "trace.json").read_text()
    assert f'"pid": {started.pid}' in (tmp_path / "trace.json").read_text()


def test_a_published_version_is_known_here_and_its_weights_are_in_shared_memory(models):
    before = models.run(PolicyModels.weights)
    weights = models.run(PolicyModels.publish, 7)
    assert models.local.actor.version == 7
    assert all(before[name].data_ptr() == weights[name].data_ptr() for name in weights)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=1,
    injected="the process that trains is killed",
    seen="the call under way raises an error that names the signal, and so does every later one",
)
def test_a_killed_learner_ends_the_run_with_an_error(tmp_path):
    config = runs.tiny(tmp_path)
    with LearnerStart() as started:
        process = LearnerProcess(config, started)
        process.call(sleep, 0)  # it runs
        killing = threading.Timer(0.3, os.killpg, (started.pid, signal.SIGKILL))
        killing.start()
        for _ in range(2):
            with pytest.raises(EngineError, match=r"ended during sleep.*SIGKILL"):
                process.call(sleep, 600)
        killing.join()


@pytest.mark.exhaustive
def test_a_killed_trainer_leaves_no_process():
    trainer = subprocess.Popen([sys.executable, PROGRAM], stdout=subprocess.PIPE, text=True)
    group = int(trainer.stdout.readline())
    trainer.kill()
    trainer.communicate()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the process that trains is still there")


def test_memory_that_two_have_mapped_holds_any_tensors_and_grows():
    descriptor = os.memfd_create("test")
    writer, reader = SharedTensors(descriptor), SharedTensors(descriptor)
    small = {"a": torch.arange(3), "b": torch.tensor(1.5, dtype=torch.bfloat16), "none": torch.zeros(0, 4)}
    found = reader.read(writer.write(small))
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in small.items())
    again = writer.write({name: value + 1 for name, value in small.items()})
    assert again.places is None
    assert torch.equal(found["a"], torch.arange(1, 4))
    large = {"a": torch.randn(300, 100), "c": torch.randn(5, dtype=torch.float64)}
    found = reader.read(writer.write(large))
    assert found.keys() == large.keys()
    assert all(torch.equal(found[name], value) for name, value in large.items())
    os.close(descriptor)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rollout__engine": "vllm"}, "servers sample"),
        ({"archon": {"parallel": {"dp_shard": 2}}}, "archon has processes"),
        ({"metrics__profile": {"start_step": 1}}, "metrics.profile records"),
    ],
)
def test_what_a_separate_learner_cannot_do_is_refused(tmp_path, changes, why):
    with pytest.raises(ConfigError, match=why):
        runs.tiny(tmp_path, separate_learner=True, **changes)


@pytest.mark.exhaustive
def test_a_class_of_the_program_that_starts_the_run_is_refused(tmp_path):
    with given({"MyLoss": PPO}), pytest.raises(ConfigError, match=r"importable module.*my_module:MyLoss"):
        runs.tiny(tmp_path, separate_learner=True, objective__surrogate=f"{PREFIX}MyLoss")
