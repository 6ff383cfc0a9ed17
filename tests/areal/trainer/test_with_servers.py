"""The whole loop with servers: GRPO whose tokens come from server processes that are updated, killed and restarted.

With real vLLM where it is installed (`bash scripts/setup_vllm.sh`), and everywhere with a double: a process that serves
vLLM's API with our own engine behind it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import runs
import torch

import areal
from areal import models
from areal.api import UsageError
from areal.dataset.encoding import load_tokenizer
from areal.engine.config import TrainEngineConfig
from areal.engine.hf import loading as hf_loading
from areal.engine.server.adapters import AdaptedWeights
from areal.engine.train.engine import TrainingEngine
from areal.infra.metrics import names
from areal.infra.metrics.logger import read_metrics
from areal.infra.supervisor.process import free_port
from areal.models.registry import get_spec
from areal.trainer import inference
from areal.trainer.configuration.source import dump_yaml
from areal.trainer.device_sharing import DeviceTurn
from areal.trainer.evaluation.standalone import evaluate
from areal.trainer.evaluation.targets import resolve_target
from areal.trainer.ppo import PPOTrainer
from areal.trainer.server_weights import served_model, served_weights
from areal.trainer.session import open_session

ROOT = Path(__file__).resolve().parents[3]
VLLM_PYTHON = ROOT / ".venv-vllm/bin/python"


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program = _load(ROOT / "tests/areal/engine/contract/vllm_program.py")

REWARD = """
def sevens(prompt, completions, prompt_ids, completion_ids, **data):
    return completions.count("7") / max(1, len(completion_ids))
"""
MODEL = runs.BASE["model.init"] | {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "initializer_range": 0.1,
}  # fmt: skip


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A run that learns something easy in a few steps."""
    (tmp_path / "seven_rewards.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {
        "model__init": MODEL,
        "reward": "seven_rewards:sevens",
        "total_train_steps": 12,
        "gconfig__max_new_tokens": 24,
        "rollout__engine": "vllm",
        "rollout__batch_size": 8,
        "rollout__group_size": 4,
        "rollout__max_head_offpolicyness": 1,
        "servers__dtype": "float32",
        "servers__num_servers": 2,
        "servers__max_seq_len": 64,
        "servers__max_concurrent": 64,
        "servers__stream_interval": 2,
        "supervisor__poll_seconds": 0.2,
        "actor__lr": 3e-3,
        "objective__entropy_coef": 0.0,
        "objective__prox_logp": "recompute",
    }


@pytest.fixture
def with_double(settings, tmp_path):
    """Settings that start doubles where vLLM servers would be: slow enough to meet updates while they answer."""
    return settings | {"vllm__python": str(program.write_python(tmp_path / "environment" / "python", pause=0.02))}


class Observer:
    """Sees every batch, and kills a server process once."""

    def __init__(self, kill_at):
        self.kill_at, self.trainer, self.killed = kill_at, None, None
        self.rewards, self.versions, self.mixed = [], [], 0

    def __call__(self, step, trajectories):
        self.rewards.append(sum(item.reward for item in trajectories) / len(trajectories))
        for item in trajectories:
            versions = [v for v, sampled in zip(item.versions, item.loss_mask, strict=True) if sampled]
            assert versions == sorted(versions)
            self.versions.append((step, versions[0], versions[-1]))
            self.mixed += versions[0] != versions[-1]
        if step == self.kill_at:
            self.killed = _child_of(self.trainer.engine._pool.pid("vllm-0"))
            os.kill(self.killed, signal.SIGKILL)
        return trajectories


def _child_of(guard):
    for entry in Path("/proc").glob("[0-9]*/stat"):
        fields = entry.read_text().rpartition(")")[2].split()
        if int(fields[1]) == guard:
            return int(entry.parent.name)
    raise AssertionError(f"guard {guard} has no child")


def _learn(config, kill_at, tmp_path):
    observer = Observer(kill_at)
    with open_session(config) as session, PPOTrainer(config, session, transform_rewards=observer) as trainer:
        observer.trainer = trainer
        trainer.engine.wait_ready()
        summary = trainer.train()
        trainer.engine.wait_ready(timeout=240)
        stats = trainer.engine.stats()
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert summary["finished"]
    assert summary["steps"] == config.total_train_steps
    # It learns.
    assert sum(observer.rewards[-3:]) / 3 > sum(observer.rewards[:3]) / 3 + 0.2
    # Versions are right: never newer than the trainer, never older than the bound, some of two versions in one answer.
    assert all(step - 1 <= first <= last <= step for step, first, last in observer.versions)
    assert observer.mixed > 0
    # Sampler and trainer agree where they have the same weights.
    assert min(row["mismatch/abs_mean"] for row in metrics.values() if "mismatch/abs_mean" in row) < 1e-4
    # The killed server was missed by nobody, came back, and has the last weights.
    assert observer.killed is not None
    assert stats["evictions"] == 1
    assert stats["starts"] == 3
    assert stats["servers"] == 2
    assert stats["weight_updates"] == config.total_train_steps
    assert not any(
        "dropped" in key or "faults" in key for row in metrics.values() for key, value in row.items() if value
    )
    return stats


def _gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["double", "vllm"])
def test_a_checkpoint_is_evaluated_over_servers_as_in_this_process(tmp_path, with_double, program):
    if program == "vllm":
        if not VLLM_PYTHON.is_file():
            pytest.skip("no vLLM here: bash scripts/setup_vllm.sh")
        with_double |= {"vllm__python": str(VLLM_PYTHON), "servers__num_servers": 1}
    model = models.from_config(MODEL, seed=1, dtype=torch.float32, device="cpu")
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(runs.BASE["model.tokenizer_path"]).save_pretrained(tmp_path / "model")
    sets = {"held": {"dataset": {"name": "jsonl", "path": str(runs.ROWS)}, "rows": 16}}
    (tmp_path / "sets.yaml").write_text(dump_yaml(runs.tiny(tmp_path / "unused", **with_double, eval_sets=sets)))
    found = {}
    for engine in ("vllm", "embedded"):
        plan = resolve_target(
            str(tmp_path / "model"),
            config_file=tmp_path / "sets.yaml",
            overrides=(f"rollout.engine={engine}",),
            output=tmp_path / engine,
        )
        evaluate(plan)
        found[engine] = [json.loads(line) for line in (tmp_path / engine / "samples.jsonl").read_text().splitlines()]
        found[engine].sort(key=lambda line: line["row"])
        for line in found[engine]:
            del line["uses"]  # seconds
    assert len(found["vllm"]) == 16
    assert {line["length"] for line in found["vllm"]} != {0}
    assert found["vllm"] == found["embedded"]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=5,
    injected="SIGKILL of one of two server processes in the middle of a GRPO run",
    seen="the run goes on without a dropped prompt, learns, and the server comes back with the last weights",
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_grpo_learns_over_servers_one_of_which_is_killed(tmp_path, with_double):
    stats = _learn(runs.tiny(tmp_path / "run", **with_double), 3, tmp_path)
    assert stats["probe_abs_max"] < 1e-4


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bound", [0, 1])
def test_surplus_prompts_are_aborted_on_the_servers(tmp_path, with_double, bound):
    changes = {
        "rollout__surplus_prompts": 6,
        "rollout__filter_zero_variance": True,
        "rollout__max_head_offpolicyness": bound,
        "total_train_steps": 4,
        "servers__num_servers": 1,
    }
    config = runs.tiny(tmp_path / "run", **with_double | changes)
    with open_session(config) as session, PPOTrainer(config, session) as trainer:
        trainer.engine.wait_ready()
        summary = trainer.train()
        # The last surplus went with the last batch; what the bound admits for a next one is ended here.
        trainer.executor.close()
        stats = trainer.engine.stats()
    steps = [row for step, row in read_metrics(tmp_path / "run" / "metrics.jsonl").items() if step]
    assert summary["finished"]
    assert sum(row["rollout/cancelled"] for row in steps) > 0
    assert all(row["rollout/cancelled"] == 6 for row in steps) or bound
    assert stats["cancelled"] > 0
    assert stats["failed"] == 0
    assert stats["active"] == stats["waiting"] == 0


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("level", "learner"), [(1, False), (2, True)])
def test_a_run_whose_servers_sleep_while_it_learns_samples_from_the_right_weights(
    tmp_path, with_double, level, learner
):
    """With `learner`, it sleeps while they sample, and checkpoints are written meanwhile."""
    changes = {"servers__sleep_level": level, "rollout__max_head_offpolicyness": 0, "total_train_steps": 4,
               "servers__num_servers": 1, "weights__deltas": True, "servers__sleep_learner": learner,
               "checkpoint__every_steps": 1}  # fmt: skip
    config = runs.tiny(tmp_path / "run", **with_double | changes)
    with open_session(config) as session, PPOTrainer(config, session) as trainer:
        summary = trainer.train()
        assert trainer.engine.stats()["evictions"] == 0
        if learner:
            assert trainer.device.turns.turn is DeviceTurn.SAMPLING
            saved = trainer.session.store.load_latest().load("learner")["actor"]["parameters"]
            assert all(torch.equal(saved[name], value) for name, value in trainer.actor.weights().items())
    steps = [row for step, row in read_metrics(tmp_path / "run" / "metrics.jsonl").items() if step]
    if learner:
        assert {row[names.TRAINER_ASLEEP] for row in steps} == {0.0}
        assert all(row[names.TRAINER_IN_HOST] > 0 for row in steps)
    assert summary["finished"]
    assert len(steps) == 4
    assert all(row["mismatch/fresh_fraction"] == 1.0 and row["mismatch/fresh_abs_max"] < 1e-4 for row in steps)
    # Everything is trained here, so that everything is sent.
    assert len({row[names.WEIGHTS_SENT] for row in steps}) == 1
    assert all(row[names.WEIGHTS_SENT] > 0 == row[names.WEIGHTS_SKIPPED] for row in steps)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("learner", [False, True])
def test_a_loop_of_ones_own_has_the_device_of_its_servers_while_it_learns(tmp_path, learner):
    python = program.write_python(tmp_path / "environment" / "python")
    loop = areal.PolicyLoop(
        model=MODEL,
        tokenizer_path=runs.BASE["model.tokenizer_path"],
        gconfig={"max_new_tokens": 4},
        rollout={"engine": "vllm"},
        vllm={"python": str(python)},
        servers={"dtype": "float32", "max_seq_len": 64, "sleep_level": 2, "sleep_learner": learner},
        actor={"lr": 3e-3},
        seed=3,
    )
    with loop as policy:
        for step in range(1, 3):
            samples = policy.sample(["2*3=", "3*3="], group_size=4)
            for sample in samples:
                sample.reward = float(sample.completion.count("7"))
            assert {version for sample in samples for version in sample.response.output_versions} == {step - 1}
            if step == 1:
                policy.update(samples)
        policy.learn()
        policy.learn()
        with pytest.raises(UsageError, match="the servers sleep"):
            policy.sample(["2*3="])
        batch = policy.learner.prepare([sample.trajectory() for sample in samples])
        policy.learner.update(batch)
        policy.publish()
        assert policy.sample(["2*3="])[0].response.output_versions[0] == 2
        stats = policy.engine.stats()
        assert (stats["probes"], stats["evictions"]) == (3, 0)


@pytest.mark.fault(
    row=5,
    injected="SIGKILL of one of two real vLLM servers in the middle of a GRPO run (skipped without vLLM)",
    seen="as with doubles: nothing is dropped, the reward rises, versions are right, the server comes back",
)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not VLLM_PYTHON.is_file(), reason="no vLLM here: bash scripts/setup_vllm.sh")
def test_grpo_learns_over_real_vllm_servers_one_of_which_is_killed(tmp_path, settings):
    settings |= {"vllm__python": str(VLLM_PYTHON), "total_train_steps": 8}
    stats = _learn(runs.tiny(tmp_path / "run", **settings), 3, tmp_path)
    assert stats["probe_abs_max"] < 1e-4


def test_a_server_that_cannot_start_ends_the_run_with_its_log(tmp_path, settings):
    from areal.api import ArealError

    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'no such model on this machine' >&2\nexit 3\n")
    fake.chmod(0o755)
    changes = settings | {"vllm__python": str(fake), "supervisor__max_restarts": 0, "rollout__max_retries": 0,
                          "rollout__max_consecutive_failures": 1}  # fmt: skip
    config = runs.tiny(tmp_path / "run", **changes)
    with (
        open_session(config) as session,
        PPOTrainer(config, session) as trainer,
        pytest.raises(ArealError, match="no such model on this machine"),
    ):
        trainer.train()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "changes",
    [{}, *({"lora": {"rank": 2, "alpha": 4}, "adapters": how} for how in ("merged", "alone"))],
    ids=["all parameters", "merged adapters", "adapters alone"],
)
@pytest.mark.parametrize("library", ["native", "transformers"])
def test_what_servers_get_is_a_checkpoint_of_the_trained_model(changes, library):
    """Names, tied head and merged adapters, held against a model that is loaded from just these tensors."""
    config = runs.tiny(
        Path("unused"),
        actor__lora=changes.get("lora"),
        model__init=MODEL,
        model__implementation=library,
        rollout__engine="vllm",
        weights__adapters=changes.get("adapters", "auto"),
    )
    source = hf_loading if library == "transformers" else models
    actor = OneProcess(source.from_config(MODEL, seed=1), config=config.actor, total_steps=4)
    with torch.no_grad():
        for parameter in actor.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    weights = served_weights(config, actor)
    assert (weights.base is not None) == ("lora" in changes and changes["adapters"] == "alone")
    tensors = weights.first
    if weights.base is not None:
        changed = [asdict(change) for change in weights.base.changes]
        tensors = AdaptedWeights(weights.base.tensors, identity="", factors=weights.first, changes=changed)
    served = models.from_config(served_model(config.model, dtype="float32", max_seq_len=64).content, seed=2)
    names = get_spec("qwen3").state_dict_adapter(served.args)
    served.load_state_dict(names.from_hf(tensors), strict=False)
    engine = TrainingEngine(served, config=TrainEngineConfig(), total_steps=4)
    tokens = [3, 9, 4, 11, 5]
    ours, theirs = (inference._reference(each, None).score(tokens, ()) for each in (actor, engine))
    assert theirs == pytest.approx(ours, abs=1e-5)


class OneProcess(TrainingEngine):
    """The actor of a run in one process, as servers are told of it."""

    def whole_model(self):
        return self.model


def test_what_a_server_is_started_with_is_known_without_the_model():
    """The same for a family of ours, and for the class of transformers that has its own names for lengths."""
    config = runs.tiny(Path("unused"), model__init=MODEL)
    model = served_model(config.model, dtype="bfloat16", max_seq_len=512)
    assert model.content["dtype"] == "bfloat16"
    assert model.context == MODEL["max_position_embeddings"]
    foreign = {"model_type": "gpt2", "vocab_size": 17, "n_embd": 64, "n_layer": 2, "n_head": 2}
    config = runs.tiny(
        Path("unused"), model__init=foreign, model__implementation="transformers", rollout__engine="vllm"
    )
    model = served_model(config.model, dtype="float32", max_seq_len=4096)
    assert model.content["architectures"] == ["GPT2LMHeadModel"]
    assert model.context == 1024


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "changes",
    [{"model__implementation": "transformers"}, {"actor__lora": {"rank": 8, "alpha": 32}, "actor__lr": 1e-2}],
    ids=["model of transformers", "adapters"],
)
def test_other_models_learn_over_servers_too(tmp_path, with_double, changes):
    stats = _learn(runs.tiny(tmp_path / "run", **with_double | changes), 3, tmp_path)
    assert stats["probe_abs_max"] < 1e-4


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.fault(
    row=5,
    injected="SIGKILL of one of two server processes while agents talk to both over the gateway",
    seen="no agent notices; sessions live through updates, each token has its version, and the run learns",
)
@pytest.mark.timeout(300)
def test_an_agent_learns_over_servers_one_of_which_is_killed(tmp_path, with_double, monkeypatch):
    monkeypatch.setenv("AREAL_TEST_PROMPTS", str(tmp_path / "prompts"))
    example = ROOT / "examples" / "agents"
    changes = {
        "model__init": MODEL | {"vocab_size": 22, "eos_token_id": 1, "pad_token_id": 0},
        "model__tokenizer_path": str(example / "tokenizer"),
        "train_dataset__path": str(example / "questions.jsonl"),
        "workflow": "agent",
        "workflow_options": {"agent": "agents_of_runs:asks_twice"},
        "gconfig__max_new_tokens": 16,
    }
    stats = _learn(runs.tiny(tmp_path / "run", **with_double | changes), 3, tmp_path)
    assert stats["probe_abs_max"] < 1e-4
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl").values()
    assert min(row["stats/agent/exact_continuation"] for row in rows) == 1.0


FOREIGN = {
    "model__init": {"model_type": "gpt2", "vocab_size": 17, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64,
                    "initializer_range": 0.1, "bos_token_id": 0, "eos_token_id": 0},
    "model__implementation": "transformers",
}  # fmt: skip
LORA = {"actor__lora": {"rank": 8, "alpha": 32}, "actor__lr": 1e-2}


class ByHand:
    """A server that a person starts with `areal serve`, kills, and starts again."""

    def __init__(self, folder, settings):
        self.folder, self.port, self.process = folder, free_port(), None
        values = runs.BASE | {key.replace("__", "."): value for key, value in settings.items()}
        (folder / "run.yaml").write_text(f"kind: {values.pop('kind')}\n")
        self.overrides = [f"{key}={json.dumps(value)}" for key, value in values.items()]

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [sys.executable, "-m", "areal", "serve", str(self.folder / "run.yaml"), *self.overrides,
                   f"output_dir={self.folder / 'served'}", "--port", str(self.port)]  # fmt: skip
        self.process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def kill(self):
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def by_hand(tmp_path):
    """(settings) -> a server that is not started yet."""
    made = []

    def make(settings):
        made.append(ByHand(tmp_path, settings))
        return made[-1]

    yield make
    for server in made:
        if server.process is not None:
            server.kill()


def _learn_from(server, config, tmp_path, *, kill_at):
    """Train over a server that is killed and started again in the meantime."""
    rewards = []

    def observe(step, trajectories):
        rewards.append(sum(item.reward for item in trajectories) / len(trajectories))
        if step == kill_at:
            server.kill()
            server.start()
        return trajectories

    server.start()
    with open_session(config) as session, PPOTrainer(config, session, transform_rewards=observe) as trainer:
        summary = trainer.train()
        trainer.engine.wait_ready(timeout=240)
        stats = trainer.engine.stats()
    assert summary["finished"]
    assert server.process.poll() is None, "it belongs to somebody else"
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert (stats["starts"], stats["evictions"]) == (2, 1)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert max(row["mismatch/fresh_abs_max"] for row in metrics.values() if "mismatch/fresh_abs_max" in row) < 1e-3
    assert not any("dropped" in key for row in metrics.values() for key, value in row.items() if value)
    return stats


@pytest.mark.fault(
    row=5,
    injected="SIGKILL of the only server of a GRPO run, which somebody else started, and starts again",
    seen="the run waits for it, gives it weights, and goes on without a dropped prompt",
)
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_grpo_learns_over_a_server_that_somebody_else_kills_and_starts_again(tmp_path, with_double, by_hand):
    server = by_hand(with_double)
    config = runs.tiny(tmp_path / "run", **with_double, servers__addresses=[server.address])
    stats = _learn_from(server, config, tmp_path, kill_at=3)
    assert stats["probe_abs_max"] < 1e-4


@pytest.mark.fault(
    row=5,
    injected="the same with a real vLLM server, adapters alone and a model without a family (skipped without vLLM)",
    seen="as with the double: base and adapters go to the new start, the reward rises",
)
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.skipif(not VLLM_PYTHON.is_file(), reason="no vLLM here: bash scripts/setup_vllm.sh")
def test_adapters_of_a_foreign_model_learn_over_a_real_vllm_server_started_by_hand(tmp_path, settings, by_hand):
    settings |= {"vllm__python": str(VLLM_PYTHON), **FOREIGN, **LORA}
    server = by_hand(settings)
    config = runs.tiny(tmp_path / "run", **settings, servers__addresses=[server.address])
    stats = _learn_from(server, config, tmp_path, kill_at=3)
    assert stats["probe_abs_max"] < 1e-4
    assert stats["published_bytes"] < stats["base_bytes"] / 2
