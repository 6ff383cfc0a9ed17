"""Every field of a config.json is consumed, known to be harmless, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from areal.api import ModelError
from areal.models import from_config
from areal.models.config_fields import ConfigFields
from areal.models.registry import get_spec

# As published with the checkpoints, written by transformers 4.
QWEN2_5 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}
PUBLISHED = {"qwen2": QWEN2_5, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE}


def read(config):
    return get_spec(config["model_type"]).args_class.from_hf_config(config)


def windows(args):
    """Sliding window of each layer, as the model is built."""
    with torch.device("meta"):
        model = get_spec(args.model_type).model_class(args)
    return [layer.self_attn.window for layer in model.layers]


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
def test_published_configs_are_read_as_transformers_reads_them(config):
    from transformers import AutoConfig

    args = read(config)
    theirs = AutoConfig.for_model(**config)
    assert args.rotary.theta == theirs.rope_parameters["rope_theta"] == 1e6
    assert args.head_dim == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert windows(args) == [None] * theirs.num_hidden_layers
    assert args.num_kv_heads == theirs.num_key_value_heads
    assert args.tie_word_embeddings == theirs.tie_word_embeddings
    assert args.token_ids == {"bos_token_id": 151643, "eos_token_id": 151645}
    # And the other spelling, which transformers 5 writes; it removes a window that is switched off.
    again = read(theirs.to_dict())
    assert windows(again) == windows(args)
    assert replace(again, sliding_window=args.sliding_window, token_ids={}) == replace(args, token_ids={})


@pytest.mark.sample(3)
@pytest.mark.parametrize("model_type", PUBLISHED)
@pytest.mark.parametrize("use_sliding_window", [True, False])
def test_windows_follow_the_rules_of_transformers(model_type, use_sliding_window):
    from transformers import AutoConfig

    config = {**PUBLISHED[model_type], "use_sliding_window": use_sliding_window, "sliding_window": 9}
    config["max_window_layers"] = 20
    theirs = AutoConfig.for_model(**config)
    if model_type == "qwen3_moe":
        expected = [theirs.sliding_window] * theirs.num_hidden_layers
    else:
        expected = [theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types]
    assert windows(read(config)) == expected
    assert (9 in expected) is use_sliding_window


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def test_both_spellings_of_scaled_rotary_positions_mean_the_same():
    legacy = read(
        {**QWEN2_5, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    )
    current = {name: value for name, value in QWEN2_5.items() if name != "rope_theta"}
    assert read({**current, "rope_parameters": {**YARN, "rope_theta": 1e6}}) == legacy
    assert legacy.rotary.rotary_type == "yarn"


REFUSED = {
    "activation": ({"hidden_act": "mystery"}, r"mystery"),
    "unknown field": ({"use_mystery": True}, r"does not implement: use_mystery=True"),
    "several unknown": ({"b_field": 1, "a_field": None}, r"a_field=None, b_field=1"),
    "remote code": ({"auto_map": {"AutoModel": "evil.Model"}}, r"auto_map is"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config is .*fp8"),
    "rotary type": (
        {"rope_scaling": {"rope_type": "mrope"}},
        r"rope_scaling\.rope_type is 'mrope', supported is one of",
    ),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"rope_type is 'dynamic', supported is one of"),
    "longrope": ({"rope_scaling": {"rope_type": "longrope"}}, r"lacks \['long_factor', 'short_factor'\]"),
    "rotary parameter": ({"rope_scaling": {**YARN, "mystery": 1}}, r"unknown parameters \['mystery'\]"),
    "rotary lacks": ({"rope_scaling": {"rope_type": "linear"}}, r"lacks \['factor'\]"),
    "rotary value": ({"rope_scaling": {**YARN, "factor": "4"}}, r"rope_scaling\.factor is '4'"),
    "rotary per layer": (
        {"rope_theta": None, "rope_parameters": {"full_attention": {"rope_type": "default"}}},
        r"unknown parameters \['full_attention'\]",
    ),
    "partial rotary": (
        {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        r"partial_rotary_factor is 0\.5, supported is 1\.0",
    ),
    "two thetas": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, r"rope_theta is 1000000.*5\.0"),
    "two scalings": (
        {"rope_scaling": YARN, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        r"contradicts itself",
    ),
    "layer type": ({"layer_types": ["chunked_attention"] * 28}, r"layer_types is \['chunked_attention'\]"),
    "layer types length": ({"layer_types": ["full_attention"]}, r"a list of 28 entries"),
    "one position": ({"max_position_embeddings": 1}, r"max_position_embeddings=1; expected room for at least 2"),
    "group sizes": ({"num_key_value_heads": 3}, r"num_kv_heads=3; expected query heads in equal groups"),
    "bool as number": ({"hidden_size": True}, r"hidden_size is True, supported is of type int"),
    "text as number": ({"hidden_size": "1024"}, r"hidden_size is '1024'"),
    "number as flag": ({"attention_bias": 1}, r"attention_bias is 1, supported is of type bool"),
    "no layers": ({"num_hidden_layers": 0}, r"num_hidden_layers is 0"),
    "negative eps": ({"rms_norm_eps": -1e-6}, r"rms_norm_eps is -1e-06"),
    "null for a number with a default": ({"rms_norm_eps": None}, r"rms_norm_eps is None, supported is of type float"),
    "null for a flag": ({"tie_word_embeddings": None}, r"tie_word_embeddings is None, supported is of type bool"),
    "null size": ({"vocab_size": None}, r"vocab_size is None, supported is of type int"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_implemented_is_refused_by_name(change, message):
    with pytest.raises(ModelError, match=message):
        windows(read({**QWEN3, **change}))


def test_dropout_of_a_published_config_is_left_out_and_said_once(caplog):
    plain = read(QWEN3)
    assert not caplog.records
    assert read({**QWEN3, "attention_dropout": 0.1}) == plain
    assert [record.getMessage() for record in caplog.records] == [
        "config of model_type 'qwen3' asks for attention_dropout=0.1: training runs without it"
    ]


def test_dropout_is_refused_by_families_whose_code_was_not_seen_to_leave_it_out():
    config = {"model_type": "novel", "attention_dropout": 0.1}
    ConfigFields(config).finish({"attention_dropout"})
    with pytest.raises(ModelError, match=r"attention_dropout is 0\.1"):
        ConfigFields(config).finish()


def test_embeddings_that_older_recurrent_gemmas_say_are_scaled_have_to_be():
    ConfigFields({"model_type": "novel", "embeddings_scale_by_sqrt_dim": True}).finish()
    with pytest.raises(ModelError, match="embeddings_scale_by_sqrt_dim is False"):
        ConfigFields({"model_type": "novel", "embeddings_scale_by_sqrt_dim": False}).finish()


@pytest.mark.parametrize("value", [0, 0.0, None])
def test_dropout_that_is_off_is_not_worth_a_word(value, caplog):
    read({**QWEN3, "attention_dropout": value})
    assert not caplog.records


MOE_REFUSED = {
    "too many chosen": ({"num_experts_per_tok": 129}, r"cannot give top_k=129 experts"),
    "two counts": ({"num_local_experts": 64}, r"num_experts is 128, supported is the same as num_local_experts"),
    "bad list": ({"mlp_only_layers": ["1"]}, r"mlp_only_layers"),
    "shared expert": ({"shared_expert_intermediate_size": 5}, r"shared_expert_intermediate_size=5"),
    "layer types": ({"layer_types": ["full_attention"] * 48}, r"layer_types="),
}


@pytest.mark.parametrize(("change", "message"), MOE_REFUSED.values(), ids=MOE_REFUSED.keys())
def test_what_experts_do_not_implement_is_refused_by_name(change, message):
    with pytest.raises(ModelError, match=message):
        windows(read({**QWEN3_MOE, **change}))


def test_fields_of_another_family_are_refused():
    with pytest.raises(ModelError, match="attention_bias=True"):
        read({**QWEN2_5, "attention_bias": True})
    with pytest.raises(ModelError, match="num_experts=4"):
        read({**QWEN3, "num_experts": 4})


def test_an_unknown_model_type_is_refused_with_the_nearest_names():
    with pytest.raises(ModelError, match=r"'qwen4' is not implemented; nearest: qwen[23]"):
        from_config({**QWEN3, "model_type": "qwen4"})


@pytest.mark.parametrize("model_type", ["os:getcwd", "areal.models.qwen3:SPEC", None, 3])
def test_a_config_cannot_name_code_to_import(model_type):
    with pytest.raises(ModelError, match="model_type"):
        from_config({**QWEN3, "model_type": model_type})


def test_token_ids_are_written_back_as_they_were_nulls_included():
    given = {"eos_token_id": [1, 2], "pad_token_id": None}
    args = read(PUBLISHED["qwen3"] | {"bos_token_id": 7} | given)
    written = args.to_hf_config()
    assert {name: written[name] for name in ("bos_token_id", *given)} == {"bos_token_id": 7} | given
    without = {name: value for name, value in PUBLISHED["qwen3"].items() if not name.endswith("_token_id")}
    assert not any(name.endswith("_token_id") for name in read(without).to_hf_config())


def test_numbers_of_each_layer_are_one_for_each():
    def fields_of(**config):
        return ConfigFields({"model_type": "some", **config})

    assert fields_of(bases=[5, 0, 2.5]).numbers_per_layer("bases", 3) == (5.0, 0.0, 2.5)
    assert fields_of(bases=None).numbers_per_layer("bases", 2, null=7.0) == (7.0, 7.0)
    assert fields_of().numbers_per_layer("bases", 2, null=7.0) == (7.0, 7.0)
    with pytest.raises(ModelError, match="bases, which is required"):
        fields_of().numbers_per_layer("bases", 2)
    for wrong in ([1.0], [1.0, -1.0], [1.0, None], [1.0, True], "ab", 3.0):
        with pytest.raises(ModelError, match="a list of 2 numbers of at least 0"):
            fields_of(bases=wrong).numbers_per_layer("bases", 2)


def test_sizes_of_layers_are_whole_and_one_for_each():
    def fields_of(**config):
        return ConfigFields({"model_type": "some", **config})

    assert fields_of(heads=[4, 8]).sizes_per_layer("heads", 2) == (4, 8)
    assert fields_of(heads=None).sizes_per_layer("heads", 2, [3, 3]) == (3, 3)
    with pytest.raises(ModelError, match="heads, which is required"):
        fields_of().sizes_per_layer("heads", 2)
    for wrong in ([4], [4, 0], [4, 2.0], [4, True], "ab", 4):
        with pytest.raises(ModelError, match="a list of 2 whole numbers of at least 1, one per layer"):
            fields_of(heads=wrong).sizes_per_layer("heads", 2)


# -------------------------------------------------------------------------------------------------------- remote code

ANALYSED = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}


@pytest.mark.parametrize(
    "found",
    [
        ANALYSED,
        {name: f"org/name--{code}" for name, code in ANALYSED.items()},
        {"AutoModelForCausalLM": ANALYSED["AutoModelForCausalLM"], "AutoTokenizer": ["tokenizer.X", None]},
    ],
    ids=["equal", "of a repository", "with a tokenizer"],
)
def test_the_code_that_was_analysed_is_accepted_and_handed_back(found: dict[str, Any]) -> None:
    fields = ConfigFields({"model_type": "x", "auto_map": found})
    assert fields.remote_code(ANALYSED) == found
    fields.finish()


def test_a_config_without_code_names_none() -> None:
    for config in ({"model_type": "x"}, {"model_type": "x", "auto_map": None}):
        assert ConfigFields(config).remote_code(ANALYSED) == {}


@pytest.mark.parametrize(
    "found", [{**ANALYSED, "AutoModelForCausalLM": "modeling_x.YForCausalLM"}, {"AutoConfig": "y.XConfig"}, "code.py"]
)
def test_other_code_is_refused(found: Any) -> None:
    with pytest.raises(ModelError, match="auto_map"):
        ConfigFields({"model_type": "x", "auto_map": found}).remote_code(ANALYSED)


def fields(**values: Any) -> ConfigFields:
    return ConfigFields({"model_type": "tested", **values})


class TestBounds:
    @pytest.mark.parametrize("written", [[0.0, float("inf")], (0, float("inf"))])
    def test_a_range_may_have_no_end(self, written: Any) -> None:
        assert fields(limit=written).bounds("limit") == (0.0, float("inf"))

    def test_an_absent_one_is_the_default(self) -> None:
        assert fields().bounds("limit", (0.0, 1.0)) == (0.0, 1.0)
        with pytest.raises(ModelError, match="no limit"):
            fields().bounds("limit")

    @pytest.mark.parametrize("wrong", [[1.0, 0.5], [0.0], [0.0, 1.0, 2.0], "auto", [0.0, None], [False, 1.0]])
    def test_what_is_no_range_is_refused_by_name(self, wrong: Any) -> None:
        with pytest.raises(ModelError, match=r"limit is .* a list of two numbers"):
            fields(limit=wrong).bounds("limit", (0.0, 1.0))


def test_a_text_may_stand_for_an_absent_number() -> None:
    read = fields(size="auto")
    read.omit("size", "auto")
    assert read.integer("size", null=8) == 8
    read = fields(size="large")
    read.omit("size", "auto")
    with pytest.raises(ModelError, match="size is 'large'"):
        read.integer("size", null=8)


LETTERS = {"M": "mamba", "*": "attention"}


class TestSpelling:
    def test_letters_spell_a_list(self) -> None:
        read = fields(pattern="MM*", size=1)
        read.spelled("kinds", "pattern", LETTERS)
        assert read.per_layer("kinds", None, allowed=("mamba", "attention")) == ("mamba", "mamba", "attention")

    def test_the_list_itself_may_be_there_too_if_it_says_the_same(self) -> None:
        read = fields(pattern="M*", kinds=["mamba", "attention"])
        read.spelled("kinds", "pattern", LETTERS)
        assert read.per_layer("kinds", None, allowed=("mamba", "attention")) == ("mamba", "attention")
        with pytest.raises(ModelError, match="pattern is"):
            fields(pattern="M*", kinds=["attention", "mamba"]).spelled("kinds", "pattern", LETTERS)

    @pytest.mark.parametrize("wrong", ["M-", 3, ["M"]])
    def test_other_texts_are_refused(self, wrong: Any) -> None:
        with pytest.raises(ModelError, match="pattern is"):
            fields(pattern=wrong).spelled("kinds", "pattern", LETTERS)

    def test_a_list_of_no_layers_is_refused(self) -> None:
        with pytest.raises(ModelError, match="kinds is"):
            fields(kinds=[]).per_layer("kinds", None, allowed=("mamba",))

    def test_without_it_nothing_is_said(self) -> None:
        read = fields(kinds=["mamba"])
        read.spelled("kinds", "pattern", LETTERS)
        assert read.per_layer("kinds", None, allowed=("mamba",)) == ("mamba",)


def test_older_words_of_a_list_are_those_of_today() -> None:
    words = {"mamba": "linear", "attention": "full"}
    read = fields(kinds=["mamba", "full", "attention"])
    read.respell("kinds", words)
    assert read.per_layer("kinds", 3, allowed=("linear", "full")) == ("linear", "full", "full")
    for odd in ("mamba", 3, [3], None):
        read = fields(kinds=odd)
        read.respell("kinds", words)
        with pytest.raises(ModelError, match="kinds"):
            read.per_layer("kinds", 1, allowed=("linear", "full"))
