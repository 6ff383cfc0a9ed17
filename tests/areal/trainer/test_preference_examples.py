"""The ready-made configurations of runs on pairs, with a tiny model in place of the checkpoint they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal.infra.metrics.logger import read_metrics
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import validate_run
from areal.trainer.run import run

EXAMPLES = Path(__file__).parents[3] / "examples" / "preference"
MODEL = {
    "model_type": "qwen3",
    "vocab_size": 258,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["hhrlhf_dpo", "hhrlhf_reward_model"])
def test_an_example_runs_on_the_packaged_pairs(tmp_path, name):
    settings = {
        "model.path": "",
        "model.init": MODEL,
        "model.tokenizer_path": "bytes:",
        "output_dir": str(tmp_path / "run"),
        "total_train_steps": 2,
        "batch_size": 4,
        "actor.device": "cpu",
        "metrics.progress": False,
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    config = load_config(EXAMPLES / f"{name}.yaml", overrides).config
    validate_run(config)
    summary = run(config)
    assert summary["finished"]
    assert summary["eval_after"]["eval/rows"] > 0
    assert set(read_metrics(tmp_path / "run" / "metrics.jsonl")) == {0, 1, 2}
    assert Path(summary["report"]).stat().st_size > 0
