"""Whole analyses, a type of transformers for each kind of feature: reports that predict configs they never saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal.porting.__main__ import main
from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve

NOVEL = Path(__file__).parents[1] / "novel"

EVERY_KIND = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("qwen2", "mixtral", "granite", "gpt2")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", ["llama", *EVERY_KIND])
def test_a_family_is_proven_with_an_account_of_every_field(model_type, report) -> None:
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


@pytest.mark.exhaustive
def test_slots_of_llama_are_its_fields(report) -> None:
    slots = report("llama")["slots"]
    assert slots["hidden_size"] == {"kind": "field", "name": "hidden_size"}
    assert slots["layer.attention.num_kv_heads"] == {"kind": "field", "name": "num_key_value_heads"}
    assert slots["layer.attention.query_bias"] == {"kind": "field", "name": "attention_bias"}
    assert slots["layer.attention.scale"]["powers"] == {"head_dim": -0.5}
    assert slots["layer.window"] == {"kind": "constant", "value": None}
    assert slots["layer.rotary"]["types"] == ["default", "linear", "llama3", "longrope", "yarn"]
    assert slots["tied"] == {"kind": "field", "name": "tie_word_embeddings"}


def test_nulls_are_filled_by_rules(uses) -> None:
    found = uses("llama")
    assert found["num_key_value_heads"]["default_rule"] == {"kind": "field", "name": "num_attention_heads"}
    assert found["head_dim"]["default_rule"]["integer"] is True


@pytest.mark.exhaustive
def test_lists_over_layers_are_filled_by_rules(uses) -> None:
    windows = uses("qwen2")
    assert windows["layer_types"]["default_rule"]["kind"] == "per_layer"
    assert windows["layer_types"]["allowed"] == ["full_attention", "sliding_attention"]
    assert {windows[name]["status"] for name in ("use_sliding_window", "max_window_layers")} == {"used"}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_layers_of_gemma4_that_share_keys_are_counted_from_the_end(report) -> None:
    slots = report("gemma4_text")["slots"]
    shared = {"kind": "from_end", "field": "num_kv_shared_layers", "depth": "num_hidden_layers"}
    assert slots["layer.attention.shares_keys"]["condition"] == shared
    wide = slots["layer.feed_forward.intermediate_size"]
    assert wide["condition"] == shared
    assert (wide["then"]["field"], wide["then"]["then"]["factor"]) == ("use_double_wide_mlp", 2.0)
    # The class lets the last layer attend to everything, whatever the list says.
    kinds, last = slots["layer.window"]["condition"]["conditions"]
    assert kinds == {"kind": "listed", "field": "layer_types", "values": ["sliding_attention"]}
    assert last["condition"] == {"kind": "from_end", "field": 1, "depth": "num_hidden_layers"}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_what_each_layer_of_gemma4_gets_may_be_nothing_and_experts_are_a_switch(report) -> None:
    slots = report("gemma4_text")["slots"]
    assert slots["layer_embeddings.size"] == {"kind": "field", "name": "hidden_size_per_layer_input"}
    assert (slots["layer_embeddings"]["field"], slots["layer_embeddings"]["value"]) == (
        "hidden_size_per_layer_input",
        0,
    )
    assert slots["layer.experts_beside"] == {"kind": "field", "name": "enable_moe_block"}
    assert slots["layer.experts_beside.router.top_k"] == {"kind": "field", "name": "top_k_experts"}
    fields = {each["name"]: each for each in report("gemma4_text")["fields"]}
    sizes = ("global_head_dim", "hidden_size", "num_kv_shared_layers", "top_k_experts")
    assert not any(fields[name]["allowed"] for name in sizes)


@pytest.mark.exhaustive
def test_scalars_of_granite_are_bound(report) -> None:
    slots = report("granite")["slots"]
    assert slots["embedding_multiplier"] == {"kind": "field", "name": "embedding_multiplier"}
    assert slots["layer.residual_multiplier"] == {"kind": "field", "name": "residual_multiplier"}
    assert slots["layer.attention.scale"] == {"kind": "field", "name": "attention_multiplier"}
    assert slots["logit_multiplier"]["powers"] == {"logits_scaling": -1.0}


@pytest.mark.exhaustive
def test_experts_of_mixtral_are_bound(report) -> None:
    slots = report("mixtral")["slots"]
    assert slots["layer.feed_forward"] == {"kind": "constant", "value": "moe"}
    assert slots["layer.feed_forward.router.num_experts"]["name"] == "num_local_experts"
    assert slots["layer.feed_forward.router.top_k"]["name"] == "num_experts_per_tok"


@pytest.mark.exhaustive
def test_fields_of_gpt2_have_their_own_names(report, uses) -> None:
    slots = report("gpt2")["slots"]
    assert slots["hidden_size"]["name"] == "n_embd"
    assert slots["positions.num_positions"]["name"] == "n_positions"
    assert "hidden_size" in uses("gpt2")["n_embd"]["aliases"]


@pytest.mark.exhaustive
def test_latent_attention_of_deepseek_is_bound_with_its_sharpened_scores(report) -> None:
    slots = report("deepseek_v3")["slots"]
    scale = slots["layer.attention.scale"]
    assert scale["kind"] == "rotary_scaled"
    assert scale["base"]["exponent"] == -0.5
    assert {term["name"] for term in scale["base"]["base"]["terms"]} == {"qk_nope_head_dim", "qk_rope_head_dim"}
    assert "yarn" in slots["layer.rotary"]["types"]
    assert slots["layer.feed_forward"]["condition"] == {"kind": "at_least", "field": "first_k_dense_replace"}


@pytest.mark.exhaustive
def test_groups_of_experts_that_make_no_difference_alone_are_bound(report, uses) -> None:
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


def test_an_architecture_beyond_the_blocks_is_refused_by_name(report) -> None:
    found = report("rwkv")
    assert found["status"] == "unsupported"
    assert all(each["feature"] and each["where"] for each in found["missing"])
    assert not found["slots"]


def test_the_command_writes_one_object_and_names_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lama", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"]
    assert answer["nearest"][0]["model_type"] == "llama"


@pytest.mark.exhaustive
def test_what_the_class_of_latent_attention_computes_and_writes_out_is_accepted(report, uses) -> None:
    fields, slots = uses("deepseek_v3"), report("deepseek_v3")["slots"]
    assert fields["head_dim"]["default_rule"] == {"kind": "field", "name": "qk_rope_head_dim"}
    assert (fields["head_dim"]["status"], fields["head_dim"]["allowed"]) == ("fixed", [])
    assert fields["qk_head_dim"]["status"] == "ignored"
    assert fields["num_key_value_heads"]["status"] == "ignored", "without effect beside every switch"
    assert slots["layer.rotary.dim"] == {"kind": "field", "name": "qk_rope_head_dim"}


@pytest.mark.exhaustive
def test_a_head_size_that_the_attention_derives_becomes_a_rule(report, uses) -> None:
    powers = {"hidden_size": 1.0, "num_attention_heads": -1.0}
    rule = {"kind": "product", "factor": 1.0, "powers": powers, "integer": True}
    slots = report("mixtral")["slots"]
    assert uses("mixtral")["head_dim"]["default_rule"] == rule
    assert slots["layer.attention.head_dim"] == {"kind": "field", "name": "head_dim"}
    assert "null" not in json.dumps(slots["layer.attention.scale"])


@pytest.mark.exhaustive
def test_a_number_that_the_class_zeroes_beside_a_flag_may_be_zero(uses) -> None:
    fields = uses("qwen2_moe")
    assert fields["sliding_window"]["minimum"] == 0
    assert fields["num_hidden_layers"]["minimum"] is None


@pytest.mark.exhaustive
def test_a_bias_that_one_kind_of_projection_never_has_follows_from_both_fields(report) -> None:
    """Two fields of youtu do together what neither of them says alone."""
    found = report("youtu")
    assert found["status"] == "proven"
    assert found["slots"]["layer.attention.query_bias"] == {
        "kind": "when_equal",
        "field": "q_lora_rank",
        "value": None,
        "then": {"kind": "constant", "value": False},
        "otherwise": {"kind": "field", "name": "attention_bias"},
    }
    many = [variant for variant in found["variants"] if variant["name"].startswith("many changes")]
    assert len(many) == 2
    assert all(len(variant["overrides"]) > 2 and variant["parity"] <= variant["tolerance"] for variant in many)
