"""Tiny runs shared by the trainer tests: a two-layer Qwen3 on a multiplication table, a few prompts per step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from areal.trainer.configuration.source import load_config
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from areal.trainer.config import PPOConfig

ROWS = Path(__file__).with_name("products.jsonl")
"""64 rows: reading the packaged ones takes longer than training on them here."""

BASE: dict[str, Any] = {
    "kind": "rl",
    "seed": 3,
    "total_train_steps": 4,
    "model.init": {
        "model_type": "qwen3",
        "vocab_size": 17,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
    },
    "model.tokenizer_path": "characters:0123456789+-*/=",
    "train_dataset.name": "jsonl",
    "train_dataset.path": str(ROWS),
    "reward": "exact",
    "gconfig.max_new_tokens": 4,
    "rollout.batch_size": 4,
    "rollout.group_size": 4,
    "rollout.max_head_offpolicyness": 0,
    "engine.max_seq_len": 64,
    "actor.lr": 1e-3,
    "objective.preset": "dapo",
    "objective.entropy_coef": 0.01,
    "metrics.progress": False,
}


def tiny(output_dir: Path, **changes: Any) -> PPOConfig:
    """A valid run; keys of `changes` use __ for the dot, e.g. rollout__batch_size=2."""
    settings = (
        BASE | {"output_dir": str(output_dir)} | {key.replace("__", "."): value for key, value in changes.items()}
    )
    return load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config


def train(config: PPOConfig, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run to the end; returns the summary and a copy of the final parameters."""
    with open_session(config) as session, PPOTrainer(config, session, **options) as trainer:
        summary = trainer.train()
        return summary, {name: tensor.clone() for name, tensor in trainer.actor.weights().items()}


def sample_of(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Parameters of a test: `make test` runs the chosen ones, `make test-all` all."""
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


__all__ = ["BASE", "ROWS", "replace", "sample_of", "tiny", "train"]
