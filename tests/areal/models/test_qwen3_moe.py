"""Qwen3Moe against transformers: logits, gradients, checkpoints in both directions, and every config field."""

from __future__ import annotations

import pytest

from areal.api import ModelError
from areal.models import from_pretrained
from areal.models.qwen3_moe.args import Qwen3MoeArgs
from areal.models.qwen3_moe.spec import SPEC
from areal.testing import families

CONFIG = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 24,
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 64,
    "max_window_layers": 2,
    "mlp_only_layers": [],
    "moe_intermediate_size": 40,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 0.002,
    "sliding_window": 8,
    "use_sliding_window": True,
    "vocab_size": 136,
}
DEFAULTS = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 64,
    "max_window_layers": 2,
    "mlp_only_layers": [],
    "moe_intermediate_size": 40,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "sliding_window": 8,
    "vocab_size": 136,
}
"""Sizes only: everything else is what its absence means."""
CONFIGS = {
    "tiny": CONFIG,
    "defaults": DEFAULTS,
    "tie_word_embeddings true": CONFIG | {"tie_word_embeddings": True},
    "attention_bias true": CONFIG | {"attention_bias": True},
    "use_sliding_window false": CONFIG | {"use_sliding_window": False},
    "norm_topk_prob true": CONFIG | {"norm_topk_prob": True},
    "rotary default": CONFIG | {"rope_parameters": {"rope_theta": 7000.0, "rope_type": "default"}},
    "rotary linear": CONFIG | {"rope_parameters": {"factor": 2.5, "rope_theta": 10000.0, "rope_type": "linear"}},
    "rotary llama3": CONFIG
    | {
        "rope_parameters": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
            "rope_type": "llama3",
        }
    },
    "rotary yarn": CONFIG
    | {
        "rope_parameters": {
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 10000.0,
            "rope_type": "yarn",
        }
    },
    "rotary longrope": CONFIG
    | {
        "rope_parameters": {
            "factor": 4.0,
            "long_factor": [1.5, 1.8, 2.1, 2.4, 2.7, 3.0, 3.3, 3.6, 3.9, 4.199999999999999, 4.5, 4.8],
            "original_max_position_embeddings": 16,
            "rope_theta": 10000.0,
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7000000000000002, 1.8, 1.9, 2.0, 2.1],
        }
    },
    "num_key_value_heads 1": CONFIG | {"num_key_value_heads": 1},
    "many changes 1": CONFIG
    | {
        "attention_bias": True,
        "decoder_sparse_step": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 8,
        "initializer_range": 0.03,
        "max_window_layers": 1,
        "norm_topk_prob": True,
        "num_key_value_heads": 4,
        "rms_norm_eps": 0.003,
        "use_sliding_window": False,
        "vocab_size": 8,
    },
    "many changes 2": CONFIG
    | {
        "attention_dropout": 0.3,
        "decoder_sparse_step": 3,
        "head_dim": 12,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 128,
        "norm_topk_prob": True,
        "num_experts_per_tok": 1,
        "num_key_value_heads": 1,
        "sliding_window": 16,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
}


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def theirs(request):
    return families.reference(request.param)


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    return families.load(theirs, tmp_path_factory.mktemp("theirs"))


def test_logits_equal_those_of_transformers(ours, theirs):
    families.assert_same_logits(ours, theirs)


def test_every_parameter_is_on_disk_and_comes_back_unchanged(theirs):
    families.assert_same_checkpoint(SPEC, theirs)


@pytest.mark.parametrize("name", ["tiny", "many changes 1", "many changes 2"])
def test_saved_models_are_loaded_by_transformers_and_by_us(name, tmp_path):
    theirs = families.reference(CONFIGS[name], seed=1)
    ours = families.load(theirs, tmp_path / "theirs")
    families.assert_reloads_in_transformers(ours, theirs, tmp_path / "ours")
    families.assert_same_logits(from_pretrained(tmp_path / "ours"), theirs)


def test_gradients_equal_those_of_transformers(tmp_path):
    theirs = families.reference(CONFIG, seed=1)
    families.assert_same_gradients(SPEC, families.load(theirs, tmp_path), theirs)


def test_numbers_that_are_absent_are_those_of_transformers():
    families.assert_same_numbers(
        Qwen3MoeArgs, {"max_window_layers": 2, "mlp_only_layers": [], "model_type": "qwen3_moe", "num_local_experts": 8}
    )


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_arguments_survive_the_way_to_a_config_and_back(config):
    families.assert_config_round_trip(Qwen3MoeArgs, config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "many"),
        ("num_hidden_layers", 0),
        ("vocab_size", "many"),
        ("quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_values_that_are_not_implemented_are_refused_by_name(field, value):
    with pytest.raises(ModelError, match=field):
        Qwen3MoeArgs.from_hf_config(CONFIG | {field: value})


def test_a_field_that_nobody_has_read_is_refused_by_name():
    with pytest.raises(ModelError, match="does not implement: use_mystery=True"):
        Qwen3MoeArgs.from_hf_config(CONFIG | {"use_mystery": True})
