"""The whole loop with a real SGLang server (`bash scripts/setup_sglang.sh`): GRPO whose tokens come from it.

Servers that are killed, and doubles, are in test_with_servers.py: the code around a server is the same for all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from areal.infra.metrics.logger import read_metrics
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session

SGLANG_PYTHON = Path(__file__).resolve().parents[3] / ".venv-sglang/bin/python"
STEPS = 10


REWARD = """
def sevens(prompt, completions, prompt_ids, completion_ids, **data):
    return completions.count("7") / max(1, len(completion_ids))
"""


class Observer:
    """Sees every batch."""

    def __init__(self):
        self.rewards, self.mixed = [], 0

    def __call__(self, step, trajectories):
        self.rewards.append(sum(item.reward for item in trajectories) / len(trajectories))
        for item in trajectories:
            versions = [v for v, sampled in zip(item.versions, item.loss_mask, strict=True) if sampled]
            assert versions == sorted(versions)
            # Never newer than the trainer, never older than the bound.
            assert step - 1 <= versions[0] <= versions[-1] <= step
            self.mixed += versions[0] != versions[-1]
        return trajectories


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SGLANG_PYTHON.is_file(), reason="no SGLang here: bash scripts/setup_sglang.sh")
def test_grpo_learns_over_a_real_sglang_server(tmp_path, monkeypatch):
    (tmp_path / "seven_rewards.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = runs.tiny(
        tmp_path / "run",
        model__init=runs.BASE["model.init"] | {"hidden_size": 64, "intermediate_size": 96, "initializer_range": 0.1},
        reward="seven_rewards:sevens",
        total_train_steps=STEPS,
        gconfig__max_new_tokens=48,
        rollout__engine="sglang",
        rollout__batch_size=8,
        rollout__group_size=4,
        rollout__max_head_offpolicyness=1,
        sglang__python=str(SGLANG_PYTHON),
        supervisor__max_restarts=0,
        servers__dtype="float32",
        servers__max_seq_len=64,
        servers__max_concurrent=64,
        servers__stream_interval=2,
        actor__lr=3e-3,
        objective__entropy_coef=0.0,
        objective__prox_logp="recompute",
    )
    observer = Observer()
    with open_session(config) as session, PPOTrainer(config, session, transform_rewards=observer) as trainer:
        trainer.engine.wait_ready()
        summary = trainer.train()
        stats = trainer.engine.stats()
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert summary["finished"]
    assert sum(observer.rewards[-3:]) / 3 > sum(observer.rewards[:3]) / 3 + 0.3
    # Answers were cut by updates and continued, and each part has the version that sampled it.
    assert observer.mixed > 0
    assert stats["continued"] > 0
    # Engine against engine, on the same weights: they agree in every step.
    fresh = [row["mismatch/fresh_abs_max"] for row in metrics.values() if "mismatch/fresh_abs_max" in row]
    assert fresh
    assert max(fresh) < 1e-4
    assert stats["probe_abs_max"] < 1e-4
    assert stats["weight_updates"] == STEPS
    assert stats["evictions"] == 0
    assert not any(
        "dropped" in key or "faults" in key for row in metrics.values() for key, value in row.items() if value
    )
