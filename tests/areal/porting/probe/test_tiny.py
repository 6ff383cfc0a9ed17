"""Tiny configs: built for any class, small, runnable, and with every feature where it can be seen."""

import json
import re
import shutil

import pytest

from areal.porting.probe.instance import build, logits, make_tokens
from areal.porting.probe.meanings import MAX_CHECKS, Repair
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete, cut, tiny_config
from areal.porting.records import ArchitectureRefusedError, SubjectError

QUICK = ["deepseek_v2", "gpt2", "llama4_text"]
THOROUGH = [
    "afmoe",
    "cohere2",
    "cohere_compass_text",
    "dbrx",
    "deepseek_v3",
    "dots3_note_text",
    "exaone4",
    "falcon",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "glm4_moe",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "helium",
    "lfm2_moe",
    "longcat_flash",
    "minicpm3",
    "mixtral",
    "nemotron",
    "olmo3",
    "opt",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3_moe",
    "qwen4_exp_text",
    "smollm3",
    "starcoder2",
]
TYPES = [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in THOROUGH)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", TYPES)
def test_a_tiny_config_builds_runs_and_is_small(model_type):
    subject = resolve(model_type)
    config = tiny_config(subject)
    instance = build(subject, config)
    found = logits(instance, make_tokens(instance, batch=2, length=30, seed=0))
    assert found.isfinite().all()
    assert sum(parameter.numel() for parameter in instance.model.parameters()) < 2_000_000
    json.dumps(config)


def test_fields_that_a_class_names_are_tried_whatever_else_was():
    # Of the kind of qwen4_exp: all or none of some fields, one of which has to be 1 and another as large as a head.
    needed = ("index_heads", "index_keys", "index_dim", "index_budget")
    others = {f"size_{number}": 2000 + number for number in range(60)}

    def complaint(config):
        missing = [name for name in needed if config.get(name) is None]
        if missing and len(missing) < len(needed):
            return f"missing required fields: {missing}"
        if config["index_keys"] != 1:
            return "index_keys has to be 1"
        return None if config["index_dim"] >= 16 else "index_dim is too small"

    start = others | {"index_heads": 16, "index_keys": 2, "index_dim": 12}
    found = Repair(complaint, original=others | dict.fromkeys(needed)).run([start])

    assert found == start | {"index_keys": 1, "index_dim": 16, "index_budget": 8}


def test_a_complaint_that_lists_the_whole_config_is_not_tried_without_end():
    config, asked = {f"size_{number}": 2000 + number for number in range(100)}, []

    def complaint(changed):
        asked.append(changed)
        return f"no model of {sorted(config)}"

    assert Repair(complaint, original=config).run([config]) == complaint(config)
    assert len(asked) <= 2 * MAX_CHECKS + 2


def test_features_are_where_they_can_be_seen():
    gemma2 = tiny_config(resolve("gemma2"))
    assert gemma2["sliding_window"] == 8
    assert set(gemma2["layer_types"]) == {"sliding_attention", "full_attention"}
    assert gemma2["head_dim"] * gemma2["num_attention_heads"] != gemma2["hidden_size"]
    assert gemma2["rms_norm_eps"] == 2e-3
    assert gemma2["attn_logit_softcapping"] == 4.0
    assert gemma2["final_logit_softcapping"] == 6.0
    granite = tiny_config(resolve("granite"))
    assert all(granite[name] != 1.0 for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling"))
    qwen2 = tiny_config(resolve("qwen2"))
    assert qwen2["use_sliding_window"]
    assert set(qwen2["layer_types"]) == {"sliding_attention", "full_attention"}


def test_all_pairs_of_a_head_turn_visibly():
    apertus = tiny_config(resolve("apertus"))
    assert resolve("apertus").config_class().rope_parameters["rope_theta"] > 1e7
    assert apertus["rope_parameters"]["rope_theta"] == 5e5


@pytest.mark.exhaustive
def test_experts_are_few_and_grouped_and_the_first_layer_is_dense():
    config = tiny_config(resolve("deepseek_v3"))
    assert (config["n_routed_experts"], config["num_experts_per_tok"]) == (8, 2)
    assert (config["n_group"], config["topk_group"], config["first_k_dense_replace"]) == (4, 1, 1)
    sizes = [config[name] for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")]
    assert len({*sizes, config["v_head_dim"], config["moe_intermediate_size"]}) == 6


@pytest.mark.exhaustive
def test_half_of_the_layers_share_what_earlier_ones_of_each_kind_have():
    config = tiny_config(resolve("gemma4_text"))
    assert config["num_kv_shared_layers"] == 2
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 2
    assert config["use_double_wide_mlp"]
    assert config["hidden_size_per_layer_input"] not in (config["hidden_size"], config["intermediate_size"])


@pytest.mark.exhaustive
def test_several_models_in_one_are_refused_before_anything_is_repaired():
    with pytest.raises(ArchitectureRefusedError, match="several models in one") as refusal:
        tiny_config(resolve("blt"))
    assert refusal.value.where == "config.patcher_config"
    assert "encoder_config, decoder_config, global_config" in refusal.value.detail


@pytest.mark.exhaustive
def test_nested_configs_are_shrunk():
    config = tiny_config(resolve("dbrx"))
    assert config["ffn_config"]["moe_num_experts"] == 8
    assert config["attn_config"]["kv_n_heads"] == 2


@pytest.mark.exhaustive
def test_the_development_settings_are_kept(development_models):
    for entry in development_models[:12]:
        subject = resolve(entry["model_type"])
        config = complete(subject, entry["tiny_kwargs"])
        assert {name: config[name] for name in entry["tiny_kwargs"]} == entry["tiny_kwargs"]


def test_the_settings_of_a_checkpoint_survive(tmp_path):
    content = {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "hidden_act": "gelu",
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    config = tiny_config(resolve(str(tmp_path)))
    assert config["tie_word_embeddings"]
    assert config["attention_bias"]
    assert config["hidden_act"] == "gelu"
    assert config["rope_parameters"]["rope_type"] == "linear"
    assert config["hidden_size"] == 64


def test_an_encoder_is_refused():
    with pytest.raises(SubjectError, match="not causal"):
        tiny_config(resolve("bert"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["borealis", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("aster", "cirrus", "deltamix"))],
)
def test_configs_with_names_of_their_own_are_shrunk(novel, name):
    subject = resolve(str(novel(name)), trust=True)
    config = tiny_config(subject)
    instance = build(subject, config)
    assert sum(parameter.numel() for parameter in instance.model.parameters()) < 1_000_000
    assert set(subject.raw_config) - {"auto_map"} <= set(config)


def test_fields_are_known_by_shape_where_their_names_say_nothing(tmp_path, novel):
    folder = shutil.copytree(novel("aster"), tmp_path / "aster")
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = [name for name in content if name not in ("architectures", "auto_map", "model_type", "tie_word_embeddings")]
    renamed = {name: f"z{place}" for place, name in enumerate(names) if not name.endswith("token_id")}
    for file in folder.glob("*.*"):
        text = file.read_text(encoding="utf-8")
        for name, new in renamed.items():
            text = re.sub(rf'(?<=config\.){name}\b|"{name}"|(?<=self\.){name}(?= = )', _renaming(name, new), text)
            text = re.sub(rf"(?<=\n        ){name}(?==)|(?<= = ){name}(?=\n)", new, text)
        file.write_text(text, encoding="utf-8")
    config = tiny_config(resolve(str(folder), trust=True))
    roles = {name: config[new] for name, new in renamed.items()}
    assert (roles["token_count"], roles["d_model"], roles["depth"]) == (136, 64, 4)
    assert (roles["query_heads"], roles["key_heads"], roles["channels_per_head"]) == (4, 2, 24)
    assert roles["norm_eps"] == 2e-3
    assert roles["residual_gain"] == 0.35


def _renaming(name, new):
    return lambda match: match.group(0).replace(name, new)


def test_lists_over_layers_keep_every_kind_of_layer():
    assert cut(["sliding"] * 5 + ["full"], 6) == ["sliding", "full", "sliding", "full"]
    assert cut(["dense", *["sparse"] * 7], 8) == ["dense", "sparse", "sparse", "sparse"]
    assert cut([0, 5, 7], 8) == [0]
    assert cut([9, 18, 27], 32) == [1, 2]
    assert cut([9], 32) == [1]
    assert cut([0.9, 0.95], 8) == [0.9, 0.95]
