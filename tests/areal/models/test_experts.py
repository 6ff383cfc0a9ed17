"""Mixtures of experts route and mix as the modules of `transformers` do, and refuse impossible routers."""

from __future__ import annotations

import importlib

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.mlp import MLP, GatedMLP
from areal.models.blocks.moe import Experts, MixtureOfExperts, Router

HIDDEN, WIDTH, EXPERTS, TOP_K = 32, 24, 8, 3
SIZES = {"hidden_size": HIDDEN, "num_attention_heads": 2, "num_hidden_layers": 1, "num_experts_per_tok": TOP_K}
SIGMOID = {"score": "sigmoid", "selection_bias": True}
GROUPS = {"groups": 4, "top_groups": 2}

CASES = {
    # name: (model_type, class, config, options of the router, options of the mixture)
    "mixtral": (
        "mixtral",
        "MixtralSparseMoeBlock",
        {"num_local_experts": EXPERTS, "intermediate_size": WIDTH},
        {"normalize": True},
        {},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        "Qwen2MoeSparseMoeBlock",
        {"num_experts": EXPERTS, "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": 40},
        {},
        {"shared": 40, "shared_gate": True},
    ),
    "qwen3_moe": (
        "qwen3_moe",
        "Qwen3MoeSparseMoeBlock",
        {"num_experts": EXPERTS, "moe_intermediate_size": WIDTH, "norm_topk_prob": True},
        {"normalize": True},
        {},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        "DeepseekV3MoE",
        {
            "n_routed_experts": EXPERTS,
            "moe_intermediate_size": WIDTH,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        },
        {**SIGMOID, **GROUPS, "normalize": True, "scale": 2.5},
        {"shared": WIDTH},
    ),
    "deepseek_v2": (
        "deepseek_v2",
        "DeepseekV2Moe",
        {
            "n_routed_experts": EXPERTS,
            "moe_intermediate_size": WIDTH,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.5,
            "topk_method": "group_limited_greedy",
        },
        {**GROUPS, "group_score": "max", "scale": 1.5},
        {"shared": 2 * WIDTH},
    ),
    "glm4_moe": (
        "glm4_moe",
        "Glm4MoeMoE",
        {
            "n_routed_experts": EXPERTS,
            "moe_intermediate_size": WIDTH,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.0,
            "norm_topk_prob": False,
        },
        {**SIGMOID, "groups": 2, "top_groups": 1, "scale": 2.0},
        {"shared": WIDTH},
    ),
    "minimax_m2": (
        "minimax_m2",
        "MiniMaxM2SparseMoeBlock",
        {"num_local_experts": EXPERTS, "intermediate_size": WIDTH},
        {**SIGMOID, "normalize": True},
        {},
    ),
    "granitemoe": (
        "granitemoe",
        "GraniteMoeMoE",
        {"num_local_experts": EXPERTS, "intermediate_size": WIDTH},
        {"order": "select_first"},
        {},
    ),
    "gpt_oss": (
        "gpt_oss",
        "GptOssMLP",
        {"num_local_experts": EXPERTS, "intermediate_size": WIDTH, "swiglu_limit": 1.0},
        {"order": "select_first", "bias": True},
        {"activation": "quick_gelu", "bias": True, "clamp": 1.0, "up_offset": 1.0},
    ),
    "afmoe": (
        "afmoe",
        "AfmoeSparseMoeBlock",
        {"num_experts": EXPERTS, "moe_intermediate_size": WIDTH, "num_shared_experts": 1, "route_scale": 1.7},
        {**SIGMOID, "normalize": True, "scale": 1.7},
        {"shared": WIDTH},
    ),
    "kolibri1": (
        "kolibri1",
        "Kolibri1SparseMoeBlock",
        {"num_experts": EXPERTS, "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": 40},
        {**SIGMOID, "order": "select_first"},
        {"shared": 40},
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        "Ernie4_5_MoeSparseMoeBlock",
        {"moe_num_experts": EXPERTS, "moe_k": TOP_K, "moe_intermediate_size": WIDTH, "moe_num_shared_experts": 2},
        {"selection_bias": True, "normalize": True},
        {"shared": 2 * WIDTH},
    ),
}


@torch.no_grad()
def theirs(model_type, class_name, config):
    """A mixture of transformers in which every parameter and buffer is random."""
    from transformers import AutoConfig

    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    block = getattr(module, class_name)(AutoConfig.for_model(model_type, **{**SIZES, **config})).eval()
    generator = torch.Generator().manual_seed(3)
    for tensor in block.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return block


def ours(router_options, options):
    """The same mixture of ours, uninitialised."""
    options = dict(options)
    shared, shared_gate = options.pop("shared", None), options.pop("shared_gate", False)
    return MixtureOfExperts(
        router=Router(HIDDEN, EXPERTS, TOP_K, **router_options),
        experts=Experts(HIDDEN, WIDTH, EXPERTS, **options),
        shared_experts=None if shared is None else GatedMLP(HIDDEN, shared),
        shared_gate=shared_gate,
    )


def translate(state):
    """Their parameters under our names, and in our layout."""
    found = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if "shared_expert_gate" in name:
            found["shared_gate.weight"] = tensor
        elif parts[0] in ("shared_expert", "shared_experts"):
            found[".".join(["shared_experts", *parts[1:]])] = tensor
        elif name.endswith(("expert_bias", "e_score_correction_bias")):
            found["router.selection_bias"] = tensor.flatten()
        elif parts[-1].startswith("gate_up_proj"):
            interleaved = "experts.gate_up_proj_bias" in state
            if interleaved:
                stacked = tensor if tensor.dim() == 2 else tensor.transpose(1, 2)
                gate, up = stacked[:, ::2], stacked[:, 1::2]
            else:
                gate, up = tensor.chunk(2, 1)
            kind = "bias" if tensor.dim() == 2 else "proj"
            found[f"experts.gate_{kind}"], found[f"experts.up_{kind}"] = gate, up
        elif name == "experts.down_proj":
            found[name] = tensor.transpose(1, 2) if "experts.down_proj_bias" in state else tensor
        elif name == "experts.down_proj_bias":
            found["experts.down_bias"] = tensor
        else:
            found[f"router.{parts[-1]}"] = tensor
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_routes_and_mixes_as_transformers_does(case):
    model_type, class_name, config, router_options, options = case
    reference, mixture = theirs(model_type, class_name, config), ours(router_options, options)
    mixture.load_state_dict(translate(reference.state_dict()))
    hidden = torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = reference(hidden[None])
        expected = expected[0] if isinstance(expected, tuple) else expected
        torch.testing.assert_close(mixture(hidden), expected.reshape(200, HIDDEN), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_router_option_of_a_case_moves_its_output(case):
    """Guards the test above: an option that had no effect there would not have been compared."""
    model_type, class_name, config, router_options, options = case
    state = translate(theirs(model_type, class_name, config).state_dict())
    hidden = torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(5))
    complete = ours(router_options, options)
    complete.load_state_dict(state)
    for option in router_options:
        if option == "top_groups":
            continue  # goes with groups
        reduced = {name: value for name, value in router_options.items() if name != option}
        if option == "groups":
            reduced.pop("top_groups")
        partial = ours(reduced, options)
        partial.load_state_dict(state, strict=False)
        with torch.no_grad():
            assert not torch.allclose(partial(hidden), complete(hidden), atol=1e-3), option


@pytest.mark.parametrize("case", ["deepseek_v3", "kolibri1", "ernie4_5_moe"])
def test_bfloat16_routers_of_the_deepseek_line_choose_the_same_experts(case):
    model_type, class_name, config, router_options, options = CASES[case]
    reference, mixture = theirs(model_type, class_name, config), ours(router_options, options)
    mixture.load_state_dict(translate(reference.state_dict()))
    hidden = torch.randn(500, HIDDEN, generator=torch.Generator().manual_seed(5)).bfloat16()
    for module in (reference.gate, mixture.router):
        module.weight.data = module.weight.data.bfloat16()
    with torch.no_grad():
        _, weights, experts = reference.gate(hidden[None] if case == "kolibri1" else hidden)
        our_weights, our_experts = mixture.router(hidden)
    order, our_order = experts.argsort(-1), our_experts.argsort(-1)
    assert torch.equal(experts.gather(-1, order), our_experts.gather(-1, our_order))
    torch.testing.assert_close(
        our_weights.gather(-1, our_order).float(), weights.gather(-1, order).float(), rtol=1e-2, atol=1e-3
    )


def test_the_selection_bias_is_a_float32_buffer_of_the_state_dict_and_gets_no_gradient():
    router = Router(HIDDEN, EXPERTS, TOP_K, **SIGMOID)
    assert set(router.state_dict()) == {"weight", "selection_bias"}
    assert [name for name, _ in router.named_parameters()] == ["weight"]
    assert router.selection_bias.dtype == torch.float32
    torch.nn.init.normal_(router.weight)
    weights, _ = router(torch.randn(5, HIDDEN))
    weights.sum().backward()
    assert router.weight.grad.abs().sum() > 0
    assert router.selection_bias.grad is None


@pytest.mark.parametrize("options", [{"groups": 3}, {"groups": 4, "top_groups": 1}, {"groups": 4, "top_groups": 5}])
def test_groups_that_cannot_give_enough_experts_are_refused(options):
    with pytest.raises(ModelError, match=r"router: 8 experts in \d groups"):
        Router(HIDDEN, EXPERTS, TOP_K, **options)


@pytest.mark.parametrize("gated", [True, False])
def test_stacked_experts_equal_feed_forward_layers_one_by_one(gated):
    generator = torch.Generator().manual_seed(0)
    options = {"activation": "gelu_new", "bias": True}
    extra = {"clamp": 0.4, "up_offset": 1.0} if gated else {}
    experts = Experts(HIDDEN, WIDTH, EXPERTS, gated=gated, **options, **extra)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    layer_class = GatedMLP if gated else MLP
    layers = [layer_class(HIDDEN, WIDTH, **options, **extra) for _ in range(EXPERTS)]
    for index, layer in enumerate(layers):
        state = {}
        for name, tensor in experts.named_parameters():
            projection, kind = name.split("_")
            state[f"{projection}_proj.{'weight' if kind == 'proj' else 'bias'}"] = tensor[index]
        layer.load_state_dict(state)
    hidden = torch.randn(20, HIDDEN, generator=generator)
    weights = torch.rand(20, 2, generator=generator)
    chosen = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(20)])  # 5 to 7 stay unused
    expected = torch.stack(
        [
            sum(w * layers[e](row) for w, e in zip(ws, es, strict=True))
            for row, ws, es in zip(hidden, weights, chosen, strict=True)
        ]
    )
    torch.testing.assert_close(experts(hidden, weights, chosen), expected, rtol=1e-4, atol=1e-5)
