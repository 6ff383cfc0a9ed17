"""Runs with adapters, and on models that have no family of ours: the same trainers, told by the configuration."""

from __future__ import annotations

import json

import pair_runs
import pytest
import runs
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal.api import ConfigError
from areal.infra.metrics.logger import read_metrics
from areal.trainer.configuration.memory import estimate, model_shape
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import validate_run

GPT2 = {"model_type": "gpt2", "vocab_size": 17, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
LORA = {"actor__lora": {"rank": 8, "alpha": 16}}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pair_runs.write_pairs(tmp_path_factory.mktemp("pairs"), train=200, test=100)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes", [{**LORA, "actor__lr": 2e-2}, {"model__init": GPT2, "model__implementation": "transformers"}]
)
def test_preferences_are_learnt_with_adapters_and_by_a_model_of_transformers(tmp_path, pairs, changes):
    base = {"total_train_steps": 15, "batch_size": 32, "actor__lr": 3e-3, **changes}
    summary, trainer = pair_runs.train(pair_runs.tiny("dpo", tmp_path / "run", pairs, **base))
    assert summary["eval_before"]["eval/accuracy"] == pytest.approx(0.5, abs=0.03)
    assert summary["eval_after"]["eval/accuracy"] > 0.85
    theirs = AutoModelForCausalLM.from_pretrained(summary["checkpoint"])
    ids = torch.tensor([[2, 5, 12, 9, 16, 11, 11]])
    bounds = torch.tensor([0, 7], dtype=torch.int32)
    with torch.no_grad():
        ours = trainer.engine.model(ids[0], torch.arange(7), bounds, 7)
        torch.testing.assert_close(theirs(ids).logits[0], ours, atol=1e-4, rtol=1e-4)
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists() == ("actor__lora" in changes)


def test_reinforcement_learning_on_a_model_of_transformers_needs_no_server(tmp_path):
    changes = {"model__init": GPT2, "model__implementation": "transformers", "rollout__batch_size": 2}
    config = runs.tiny(tmp_path / "run", **changes, total_train_steps=2, objective__prox_logp="recompute")
    runs.train(config)
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    # Sampled and computed anew before the update, by the same weights.
    assert [row["mismatch/abs_max"] < 1e-5 for row in steps.values()] == [True, True]


@pytest.mark.exhaustive
def test_a_run_with_adapters_goes_on_bit_by_bit_and_its_reference_is_the_base(tmp_path, pairs):
    changes = {**LORA, "checkpoint__every_steps": 1}
    _, straight = pair_runs.train(pair_runs.tiny("dpo", tmp_path / "straight", pairs, **changes))
    broken = pair_runs.tiny("dpo", tmp_path / "broken", pairs, **changes)
    with pytest.raises(KeyboardInterrupt):
        pair_runs.train(broken, fail_at=2)
    _, continued = pair_runs.train(broken)
    for name, tensor in straight.engine.weights().items():
        assert torch.equal(continued.engine.weights()[name], tensor), name
    _, plain = pair_runs.train(pair_runs.tiny("dpo", tmp_path / "plain", pairs))
    first, second = (trainer.states()["reference"]["train_dataset"] for trainer in (straight, plain))
    assert torch.equal(first["scores"], second["scores"])
    sizes = [
        sum(file.stat().st_size for file in (tmp_path / name / "checkpoints").rglob("*actor*") if file.is_file())
        for name in ("straight", "plain")
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.exhaustive
def test_a_reward_model_of_a_foreign_architecture_is_a_classifier_of_transformers(tmp_path, pairs):
    config = pair_runs.tiny(
        "reward_model", tmp_path / "run", pairs, model__init=GPT2, model__implementation="transformers"
    )
    summary, trainer = pair_runs.train(config)
    theirs, report = AutoModelForSequenceClassification.from_pretrained(summary["checkpoint"], output_loading_info=True)
    assert not report["missing_keys"]
    ids = torch.tensor([[2, 5, 12, 9, 16, 11, 11]])
    with torch.no_grad():
        ours = trainer.engine.model(ids[0], torch.arange(7), torch.tensor([0, 7], dtype=torch.int32), 7)[-1]
        torch.testing.assert_close(theirs(ids).logits[0, 0], ours, atol=1e-5, rtol=1e-4)


def test_rl_with_adapters_publishes_only_them_and_agrees_with_its_engine(tmp_path):
    config = runs.tiny(tmp_path / "run", **LORA, total_train_steps=3, actor__lr=1e-2)
    summary, weights = runs.train(config)
    assert summary["finished"]
    assert all(".lora_" in name for name in weights)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    # After updates of adapters alone, the engine still samples from what the trainer computes.
    assert max(row["mismatch/abs_max"] for row in metrics.values()) < 1e-4
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").exists()
    assert merged.config.model_type == "qwen3"


@pytest.mark.exhaustive
def test_the_adapter_of_a_run_goes_on_top_of_its_base(tmp_path, pairs):
    base = tmp_path / "base"
    seeded = pair_runs.tiny("dpo", tmp_path / "seeded", pairs)
    tokenizer = pair_runs.load("tokenizer", "areal.trainer.assembly:tokenizer_of", {})(seeded.model)
    pair_runs.load("model", "areal.trainer.assembly:load_model", {})(seeded, tokenizer).save_pretrained(base)
    config = pair_runs.tiny("dpo", tmp_path / "run", pairs, **LORA, model__path=str(base), actor__lr=2e-2)
    summary, _ = pair_runs.train(config)
    on_top = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "run" / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(summary["checkpoint"])
    ids = torch.tensor([[2, 5, 12, 9, 16, 11, 11]])
    with torch.no_grad():
        torch.testing.assert_close(on_top(ids).logits, merged(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("dpo", {"model.init": GPT2}, "and all others with model.implementation=transformers"),
        ("rl", {"model.init": GPT2}, "and all others with model.implementation=transformers"),
        (
            "rl",
            {"actor.lora": {}, "rollout.engine": "sglang", "weights.carrier": "shards"},
            "weights.carrier shards sends whole models, and actor.lora trains adapters",
        ),
        ("rl", {"servers.addresses": ["http://node1:8000"]}, "is for rollout.engine vllm, not embedded"),
        (
            "rl",
            {"servers.addresses": ["http://node1:8000"], "rollout.engine": "vllm"},
            "weights.carrier shared_memory reaches servers at http://127.0.0.1:PORT only",
        ),
        ("dpo", {"actor.lora.rank": 0}, "rank is 0"),
        ("dpo", {"actor.optimizer": "lion"}, "one of"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(pairs, kind, changes, message):
    settings = {**pair_runs.BASE, "kind": kind, "train_dataset.name": "jsonl", "train_dataset.path": str(pairs)}
    if kind == "rl":
        settings = {**runs.BASE}
    settings |= changes
    with pytest.raises(ConfigError, match=message):
        validate_run(load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config)


def test_the_dry_run_counts_gradients_and_moments_of_adapters_only(pairs):
    settings = [f"{key}={json.dumps(value)}" for key, value in {**pair_runs.BASE, "kind": "dpo"}.items()]
    shape = model_shape(pair_runs.MODEL)
    config = load_config(None, [*settings, "actor.lora.rank=4", "actor.lora.targets=[q_proj, down_proj]"]).config
    items = {item.name: item.num_bytes for item in estimate(config, shape)}
    count = 2 * 4 * ((32 + 32) + (32 + 64))
    assert items["actor gradients"] == 4 * count
    assert items["actor optimizer"] == 8 * count
    assert items["actor weights"] == 4 * shape.num_parameters
