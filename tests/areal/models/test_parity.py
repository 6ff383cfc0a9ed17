"""Logits and gradients equal those of `transformers`, and every configured feature takes part in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from areal.models import from_config, from_pretrained
from areal.models.blocks.rotary import attention_magnitude, inverse_frequencies
from areal.models.registry import MODELS, get_spec

WINDOWED = {"use_sliding_window": True, "sliding_window": 5}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
    # With 16 dimensions per head these put the ramp between dimensions 0.8 and 2.6: all three branches are taken.
    "beta_fast": 4,
    "beta_slow": 0.5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}

# name: (model_type, the config, the same config without the feature; None where dropping it changes parameters)
CASES = {
    "qwen2-plain": ("qwen2", {}, {"rms_norm_eps": 1e-6}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}, None),
    "qwen2-multi-query": ("qwen2", {"num_key_value_heads": 1}, None),
    "qwen2-multi-head": ("qwen2", {"num_key_value_heads": 4}, None),
    "qwen2-free-head-dim": ("qwen2", {"head_dim": 24}, None),
    "qwen2-windows-above": ("qwen2", {**WINDOWED, "max_window_layers": 2}, {"max_window_layers": 4}),
    "qwen2-window-of-one": ("qwen2", {**WINDOWED, "sliding_window": 1, "max_window_layers": 3}, {"sliding_window": 2}),
    "qwen2-layer-types": (
        "qwen2",
        {**WINDOWED, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    "qwen2-theta": ("qwen2", {"rope_parameters": {**PLAIN, "rope_theta": 500.0}}, {"rope_parameters": PLAIN}),
    "qwen2-linear": (
        "qwen2",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {"rope_parameters": PLAIN},
    ),
    "qwen2-llama3": ("qwen2", {"rope_parameters": LLAMA3}, {"rope_parameters": PLAIN}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}, {"rope_parameters": {**PLAIN}}),
    "qwen2-yarn-smooth": (
        "qwen2",
        {"rope_parameters": {**YARN, "truncate": False}},
        {"rope_parameters": {**YARN, "truncate": True}},
    ),
    "qwen2-yarn-attention-factor": (
        "qwen2",
        {"rope_parameters": {**YARN, "attention_factor": 1.3}},
        {"rope_parameters": YARN},
    ),
    "qwen2-yarn-mscale": (
        "qwen2",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 2.0}},
        {"rope_parameters": YARN},
    ),
    "qwen3-plain": ("qwen3", {}, {"rms_norm_eps": 1e-6}),
    "qwen3-default-head-dim": ("qwen3", {"head_dim": 128}, None),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}, None),
    "qwen3-biases": ("qwen3", {"attention_bias": True}, None),
    "qwen3-windows": ("qwen3", {**WINDOWED, "max_window_layers": 1}, {"use_sliding_window": False}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": YARN}, {"rope_parameters": PLAIN}),
    "moe-plain": ("qwen3_moe", {"norm_topk_prob": False}, {"norm_topk_prob": True}),
    "moe-normalised": ("qwen3_moe", {"norm_topk_prob": True}, {"norm_topk_prob": False}),
    "moe-dense-layers": ("qwen3_moe", {"mlp_only_layers": [1, 2]}, None),
    "moe-every-second": ("qwen3_moe", {"decoder_sparse_step": 2}, None),
    "moe-both": ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "tie_word_embeddings": True}, None),
    "moe-top-one": ("qwen3_moe", {"num_experts_per_tok": 1}, {"num_experts_per_tok": 2}),
    "moe-all-experts": ("qwen3_moe", {"num_experts_per_tok": 8}, {"num_experts_per_tok": 7}),
    "moe-windowed": ("qwen3_moe", WINDOWED, {"use_sliding_window": False}),
    "moe-biases": ("qwen3_moe", {"attention_bias": True}, None),
    "moe-divided-head-dim": ("qwen3_moe", {"head_dim": 16}, None),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_logits_equal_those_of_transformers(case, hf_model, tokens, run, tmp_path, assert_same_logits):
    model_type, overrides, _ = case
    reference = hf_model(model_type, **overrides)
    reference.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    with torch.no_grad():
        assert_same_logits(run(ours, tokens), reference(tokens[None]).logits[0])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case[2]], ids=[name for name, case in CASES.items() if case[2]]
)
def test_dropping_the_configured_feature_changes_the_logits(
    case, hf_model, tokens, run, tmp_path, assert_different_logits
):
    model_type, overrides, ablation = case
    reference = hf_model(model_type, **overrides)
    reference.save_pretrained(tmp_path)
    config = {**json.loads((tmp_path / "config.json").read_text()), **ablation}
    if "layer_types" in config and "layer_types" not in ablation:
        del config["layer_types"]  # let the ablated window fields decide
        config["use_sliding_window"] = ablation.get("use_sliding_window", overrides.get("use_sliding_window", False))
    (tmp_path / "config.json").write_text(json.dumps(config))
    without = from_pretrained(tmp_path)
    with torch.no_grad():
        assert_different_logits(run(without, tokens), reference(tokens[None]).logits[0])


def _dev_configs():
    file = Path(__file__).parents[3] / "../shared/data/dev_models.json"
    if not file.is_file():
        return {}
    data = json.loads(file.read_text())
    models = {entry["model_type"]: entry["tiny_kwargs"] for entry in data["models"] if entry["model_type"] in MODELS}
    configs = {name: (name, kwargs) for name, kwargs in models.items()}
    for entry in data["synthetic"]:
        if entry["base"] in models:
            configs[entry["name"]] = (entry["base"], {**models[entry["base"]], **entry["overrides"]})
    return configs


def test_development_configs_reach_parity(hf_model, tokens, run, tmp_path, assert_same_logits):
    configs = _dev_configs()
    if not configs:
        pytest.skip("no ../shared/data/dev_models.json beside this checkout")
    for name, (model_type, kwargs) in configs.items():
        reference = hf_model(model_type, **kwargs)
        reference.save_pretrained(tmp_path / name)
        with torch.no_grad():
            assert_same_logits(run(from_pretrained(tmp_path / name), tokens), reference(tokens[None]).logits[0])


@pytest.mark.parametrize(
    "rope_parameters",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        {**LLAMA3, "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "truncate": False},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 512},
    ],
    ids=str,
)
def test_frequencies_at_full_size_equal_those_of_transformers(rope_parameters, hf_config):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = hf_config(
        "qwen3", head_dim=128, max_position_embeddings=131072, rope_parameters={**rope_parameters, "rope_theta": 1e6}
    )
    if rope_parameters["rope_type"] == "default":
        expected, magnitude = 1.0 / 1e6 ** (torch.arange(0, 128, 2) / 128), 1.0
    else:
        expected, magnitude = ROPE_INIT_FUNCTIONS[rope_parameters["rope_type"]](config)
    args = get_spec("qwen3").args_class.from_hf_config(config.to_dict()).rotary
    (frequencies,) = inverse_frequencies(args, 128)
    assert torch.equal(frequencies, expected)
    assert attention_magnitude(args) == magnitude


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen3_moe"])
def test_gradients_equal_those_of_transformers(model_type, hf_model, tokens, run, tmp_path):
    reference = hf_model(model_type, **({"attention_bias": True} if model_type == "qwen3" else {}))
    reference.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    weights = torch.randn(40, 128, generator=torch.Generator().manual_seed(2))
    (run(ours, tokens).log_softmax(-1) * weights).sum().backward()
    (reference(tokens[None]).logits[0].log_softmax(-1) * weights).sum().backward()

    def fused(name, parameter):  # transformers holds gate and up in one tensor
        if not name.endswith("experts.gate_up_proj"):
            return {name: parameter.grad}
        gate, up = parameter.grad.chunk(2, 1)
        stem = name.removesuffix("gate_up_proj")
        return {f"{stem}gate_proj": gate, f"{stem}up_proj": up}

    expected = {}
    for name, parameter in reference.named_parameters():
        expected.update(fused(name.removeprefix("model.").replace("mlp.gate.weight", "mlp.router.weight"), parameter))
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, gradient.abs().max().item())
        assert torch.isfinite(found[name]).all(), name
        assert (found[name] - gradient).abs().max().item() <= 1e-4 * scale, name
        assert gradient.abs().max() > 0, f"{name} takes no part in the loss"


def test_bfloat16_logits_follow_those_of_transformers(hf_model, tokens, run, tmp_path):
    reference = hf_model("qwen3")
    reference.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.no_grad():
        exact = run(from_pretrained(tmp_path), tokens)
        theirs = reference.to(torch.bfloat16)(tokens[None]).logits[0].float()
        found = run(ours, tokens).float()
    # Neither is exact; ours may not lose more than theirs does.
    assert (found - exact).abs().mean() <= 1.25 * (theirs - exact).abs().mean()


def test_every_registered_type_is_served_by_the_family_it_names():
    assert list(MODELS) == sorted(MODELS)
    for model_type, target in MODELS.items():
        spec = get_spec(model_type)
        assert model_type in spec.model_types
        assert target == f"areal.models.{spec.name}:SPEC"
    assert {name for spec in map(get_spec, MODELS) for name in spec.model_types} == set(MODELS)


def test_rotation_computed_in_inference_mode_first_does_not_break_training(tokens, run):
    model = from_config(
        {
            "model_type": "qwen3",
            "hidden_size": 32,
            "intermediate_size": 32,
            "vocab_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
        }
    )
    with torch.inference_mode():
        run(model, tokens)
    run(model, tokens).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
