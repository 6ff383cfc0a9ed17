"""The whole loop with servers: GRPO whose tokens come from server processes that are updated, killed and restarted.

With real vLLM where it is installed (`bash scripts/setup_vllm.sh`), and everywhere with a double: a process that serves
vLLM's API with our own engine behind it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from areal import models
from areal.engine.hf import loading as hf_loading
from areal.engine.train.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.infra.metrics.logger import read_metrics
from areal.models.registry import get_spec
from areal.trainer import inference
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session

ROOT = Path(__file__).resolve().parents[3]
VLLM_PYTHON = ROOT / ".venv-vllm/bin/python"
DOUBLE = ROOT / "tests/areal/engine/contract/double.py"

_spec = importlib.util.spec_from_file_location("runs", Path(__file__).with_name("runs.py"))
runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runs)

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
        "objective__overrides": {"entropy_coef": 0.0},
        "objective__prox_logp": "recompute",
    }


@pytest.fixture
def with_double(monkeypatch):
    """Start doubles where vLLM servers would be started."""
    from areal.infra.supervisor.supervisor import ServerCommand

    def vllm(config, actor, tokenizer, folder):
        from areal.engine.vllm.adapter import VLLMAdapter

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(actor.model.args.to_hf_config()))
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return VLLMAdapter(), lambda index, port: ServerCommand(
            arguments=[sys.executable, str(DOUBLE), "vllm", str(folder), str(port)], environment=variables
        )

    monkeypatch.setattr(inference, "_vllm", vllm)


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


@pytest.mark.fault(
    row=5,
    injected="SIGKILL of one of two server processes in the middle of a GRPO run",
    seen="the run goes on without a dropped prompt, learns, and the server comes back with the last weights",
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_grpo_learns_over_servers_one_of_which_is_killed(tmp_path, settings, with_double):
    stats = _learn(runs.tiny(tmp_path / "run", **settings), 3, tmp_path)
    assert stats["probe_abs_max"] < 1e-4


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


@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 2, "alpha": 4}}], ids=["all parameters", "adapters"])
@pytest.mark.parametrize("library", ["ours", "transformers"])
def test_what_servers_get_is_a_checkpoint_of_the_trained_model(changes, library):
    """Names, tied head and merged adapters, held against a model that is loaded from just these tensors."""
    config = runs.tiny(Path("unused"), actor__lora=changes.get("lora"), model__init=MODEL).actor
    source = hf_loading if library == "transformers" else models
    actor = TrainingEngine(source.from_config(MODEL, seed=1), config=config, total_steps=4)
    with torch.no_grad():
        for parameter in actor.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    tensors = inference._on_disk(actor, has_adapters=bool(changes))(actor.weights())
    served = models.from_config(inference._model_config(actor, "float32"), seed=2)
    names = get_spec("qwen3").state_dict_adapter(served.args)
    served.load_state_dict(names.from_hf(tensors), strict=False)
    engine = TrainingEngine(served, config=TrainEngineConfig(), total_steps=4)
    tokens = [3, 9, 4, 11, 5]
    assert inference._reference(engine)(tokens) == pytest.approx(inference._reference(actor)(tokens), abs=1e-5)
