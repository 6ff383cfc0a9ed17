"""Whole analyses, a type of transformers for each kind of feature: reports that predict configs they never saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal.porting.__main__ import main
from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve

NOVEL = Path(__file__).parents[1] / "novel"
_REPORTS: dict[str, dict[str, Any]] = {}


def report(model_type: str) -> dict[str, Any]:
    if model_type not in _REPORTS:
        _REPORTS[model_type] = as_json(analyse(resolve(model_type)))
    return _REPORTS[model_type]


def uses(model_type: str) -> dict[str, dict[str, Any]]:
    return {use["name"]: use for use in report(model_type)["fields"]}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mixtral", "granite", "gpt2"])
def test_a_family_is_proven_with_an_account_of_every_field(model_type: str) -> None:
    found = report(model_type)
    assert found["status"] == "proven", found["missing"]
    assert all(variant["parity"] <= variant["tolerance"] for variant in found["variants"])
    assert 3 <= len(found["variants"]) <= 12
    accounted = {use["name"] for use in found["fields"]}
    whole = {name for name in found["tiny_config"] if name not in ("model_type", "architectures")}
    assert whole <= accounted
    assert all(use["reason"] for use in found["fields"] if use["status"] == "ignored")
    assert all(use["allowed"] for use in found["fields"] if use["status"] == "fixed")
    assert found["title"].startswith("Decoder with ")
    assert all(row["class"].endswith("Block") and "mlp" in row["children"] for row in found["blocks"].values())
    assert found["blocks"]


def test_slots_of_llama_are_its_fields() -> None:
    slots = report("llama")["slots"]
    assert slots["hidden_size"] == {"kind": "field", "name": "hidden_size"}
    assert slots["layer.attention.num_kv_heads"] == {"kind": "field", "name": "num_key_value_heads"}
    assert slots["layer.attention.query_bias"] == {"kind": "field", "name": "attention_bias"}
    assert slots["layer.attention.scale"]["powers"] == {"head_dim": -0.5}
    assert slots["layer.window"] == {"kind": "constant", "value": None}
    assert slots["layer.rotary"]["types"] == ["default", "linear", "llama3", "longrope", "yarn"]
    assert slots["tied"] == {"kind": "field", "name": "tie_word_embeddings"}


def test_nulls_are_filled_by_rules() -> None:
    found = uses("llama")
    assert found["num_key_value_heads"]["default_rule"] == {"kind": "field", "name": "num_attention_heads"}
    assert found["head_dim"]["default_rule"]["integer"] is True
    windows = uses("qwen2")
    assert windows["layer_types"]["default_rule"]["kind"] == "per_layer"
    assert windows["layer_types"]["allowed"] == ["full_attention", "sliding_attention"]
    assert {windows[name]["status"] for name in ("use_sliding_window", "max_window_layers")} == {"used"}


def test_scalars_of_granite_are_bound() -> None:
    slots = report("granite")["slots"]
    assert slots["embedding_multiplier"] == {"kind": "field", "name": "embedding_multiplier"}
    assert slots["layer.residual_multiplier"] == {"kind": "field", "name": "residual_multiplier"}
    assert slots["layer.attention.scale"] == {"kind": "field", "name": "attention_multiplier"}
    assert slots["logit_multiplier"]["powers"] == {"logits_scaling": -1.0}


def test_experts_of_mixtral_are_bound() -> None:
    slots = report("mixtral")["slots"]
    assert slots["layer.feed_forward"] == {"kind": "constant", "value": "moe"}
    assert slots["layer.feed_forward.router.num_experts"]["name"] == "num_local_experts"
    assert slots["layer.feed_forward.router.top_k"]["name"] == "num_experts_per_tok"


def test_fields_of_gpt2_have_their_own_names() -> None:
    slots = report("gpt2")["slots"]
    assert slots["hidden_size"]["name"] == "n_embd"
    assert slots["positions.num_positions"]["name"] == "n_positions"
    assert "hidden_size" in uses("gpt2")["n_embd"]["aliases"]


def test_latent_attention_of_deepseek_is_bound_with_its_sharpened_scores() -> None:
    slots = report("deepseek_v3")["slots"]
    scale = slots["layer.attention.scale"]
    assert scale["kind"] == "rotary_scaled"
    assert scale["base"]["exponent"] == -0.5
    assert {term["name"] for term in scale["base"]["base"]["terms"]} == {"qk_nope_head_dim", "qk_rope_head_dim"}
    assert "yarn" in slots["layer.rotary"]["types"]
    assert slots["layer.feed_forward"]["condition"] == {"kind": "at_least", "field": "first_k_dense_replace"}


@pytest.mark.exhaustive
def test_groups_of_experts_that_make_no_difference_alone_are_bound() -> None:
    slots = report("deepseek_v2")["slots"]
    for slot, name in (("groups", "n_group"), ("top_groups", "topk_group")):
        found = slots[f"layer.feed_forward.router.{slot}"]
        sides = {"greedy": found["then"], "group_limited_greedy": found["otherwise"]}
        if found["value"] != "greedy":
            sides = {"greedy": found["otherwise"], "group_limited_greedy": found["then"]}
        assert (found["kind"], found["field"]) == ("when_equal", "topk_method")
        assert sides["group_limited_greedy"] == {"kind": "field", "name": name}
        assert sides["greedy"] == {"kind": "constant", "value": 1}
    assert uses("deepseek_v2")["num_experts_per_tok"]["required"]


def test_a_novel_architecture_with_its_own_names_is_bound() -> None:
    found = as_json(analyse(resolve(str(NOVEL / "aster"), trust=True)))
    assert found["status"] == "proven"
    slots = found["slots"]
    assert slots["hidden_size"] == {"kind": "field", "name": "d_model"}
    assert slots["layer.rotary"]["theta"] == {"kind": "field", "name": "rotation_base"}
    assert slots["layer.rotary.dim"]["powers"] == {"channels_per_head": 1.0, "rotated_fraction": 1.0}
    assert found["reference"]["logits"]


def test_code_that_is_not_trusted_is_read_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(NOVEL / "aster"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "UntrustedSourceError"
    assert main([str(NOVEL / "aster"), "--static", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["model_type"]) == ("static", "aster")
    assert not found["slots"]
    assert any(line["feature"] == "config.d_model" for line in found["evidence"])


def test_an_architecture_beyond_the_blocks_is_refused_by_name() -> None:
    found = report("zamba2")
    assert found["status"] == "unsupported"
    assert all(each["feature"] and each["where"] for each in found["missing"])
    assert not found["slots"]


def test_the_command_writes_one_object_and_names_what_is_near() -> None:
    command = [sys.executable, "-m", "areal.porting", "lama", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"]) == (2, False)
    assert "llama" in answer["nearest"]
