"""Norms, activations and blocks compute what those of transformers do, and what their definitions say."""

from __future__ import annotations

import importlib

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.block import (
    OnePartBlock,
    ParallelBlock,
    PostNormBlock,
    PostResidualBlock,
    PreNormBlock,
    SandwichBlock,
)
from areal.models.blocks.mlp import ACTIVATIONS, LEARNED_ACTIVATIONS, MLP, GatedMLP, find_activation
from areal.models.blocks.norms import LayerNorm, RMSNorm


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_table_of_activations_is_that_of_transformers_but_for_those_with_parameters():
    from transformers.activations import ACT2FN

    assert ACT2FN.keys() - ACTIVATIONS.keys() == LEARNED_ACTIVATIONS.keys()
    inputs = torch.cat((torch.linspace(-30, 30, 601), rand(100)))
    for name in ACTIVATIONS:
        torch.testing.assert_close(find_activation(name)(inputs), ACT2FN[name](inputs), rtol=1e-5, atol=1e-6, msg=name)


def test_an_unknown_activation_is_refused_with_those_that_exist():
    with pytest.raises(ModelError, match=r"activation 'xielu' is not implemented; implemented are gelu, .*silu.*tanh$"):
        GatedMLP(4, 4, activation="xielu")
    with pytest.raises(ModelError, match=r"activation 'elu' is not implemented; .*tanh, prelu, xielu$"):
        find_activation("elu", learned=True)


@pytest.mark.parametrize("name", sorted(LEARNED_ACTIVATIONS))
@pytest.mark.parametrize("kind", [MLP, GatedMLP])
def test_activations_with_parameters_are_those_of_transformers_and_get_gradients(name, kind):
    from transformers.activations import ACT2FN

    layer = kind(4, 6, activation=name, learned_activation=True)
    theirs = ACT2FN[name].float()
    own = {key.removeprefix("activation."): value for key, value in layer.state_dict().items() if "activation." in key}
    assert own.keys() == theirs.state_dict().keys()
    for (key, value), other in zip(own.items(), theirs.state_dict().values(), strict=True):
        # Theirs start in bfloat16.
        torch.testing.assert_close(value, other, rtol=1e-2, atol=1e-6, msg=key)
        value.copy_((rand(1, seed=len(key)) - 0.3).reshape(value.shape))
    theirs.load_state_dict(own)
    inputs = rand(50, 3)
    torch.testing.assert_close(layer.activation(inputs), theirs(inputs))
    layer(rand(9, 4)).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())


NORMS = {
    "llama": ("llama", "LlamaRMSNorm", (16,), lambda: RMSNorm(16, 1e-2)),
    "gemma2": ("gemma2", "Gemma2RMSNorm", (16,), lambda: RMSNorm(16, 1e-2, offset=1.0)),
    "cohere, a weight per head": (
        "cohere", "CohereLayerNorm", ((3, 16),), lambda: LayerNorm((3, 16), 1e-2, bias=False),
    ),
    "nemotron": ("nemotron", "NemotronLayerNorm1P", (16,), lambda: LayerNorm(16, 1e-2, offset=1.0)),
    "olmo, no weight": ("olmo", "OlmoLayerNorm", (16,), lambda: LayerNorm(16, 1e-5, weight=False, bias=False)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", NORMS.values(), ids=NORMS)
def test_norms_equal_those_of_transformers(case, dtype):
    model_type, class_name, shape, make = case
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    eps = {} if model_type == "olmo" else {"eps": 1e-2}
    reference, norm = getattr(module, class_name)(*shape, **eps).to(dtype), make().to(dtype)
    if norm.weight is not None:
        reference.weight.data = norm.weight.data = (1 + rand(*norm.weight.shape)).to(dtype)
    if getattr(norm, "bias", None) is not None:
        reference.bias.data = norm.bias.data = rand(*norm.bias.shape, seed=2).to(dtype)
    inputs = (rand(5, 3, 16, seed=1) * 0.3 + 0.2).to(dtype)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(norm(inputs), reference(inputs), **tolerance)


@pytest.mark.parametrize("norm", [RMSNorm(8, 1e-2), RMSNorm((3, 8), 1e-2, offset=1.0), LayerNorm((3, 8), 1e-2)])
def test_norms_of_float64_lose_nothing(norm):
    inputs = rand(5, 3, 8).double()
    norm = norm.double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    centred = inputs - inputs.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else inputs
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-2).sqrt()
    expected = expected * (norm.weight + getattr(norm, "offset", 0.0)) + getattr(norm, "bias", 0.0)
    torch.testing.assert_close(norm(inputs), expected, rtol=1e-13, atol=1e-13)


def test_a_gate_is_clamped_from_above_and_up_on_both_sides():
    layer = GatedMLP(4, 6, activation="quick_gelu", bias=True, clamp=0.5, up_offset=1.0, output_bias=False)
    hidden = rand(9, 4) * 5
    gate, up = layer.gate_proj(hidden).clamp(max=0.5), layer.up_proj(hidden).clamp(-0.5, 0.5)
    torch.testing.assert_close(layer(hidden), layer.down_proj((up + 1) * gate * torch.sigmoid(1.702 * gate)))
    assert layer.down_proj.bias is None
    assert MLP(4, 6, activation="relu", bias=True).down_proj.bias is not None


class Branch(torch.nn.Module):
    """Attention or feed-forward layer: a linear map, so that every wiring gives another result."""

    def __init__(self, seed):
        super().__init__()
        self.matrix = rand(8, 8, seed=seed)

    def forward(self, hidden, *_):
        return hidden @ self.matrix


NAMES = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
WIRINGS = {
    PreNormBlock: lambda x, a, m, n, r: (h := x + r * a(n[0](x))) + r * m(n[1](h)),
    PostNormBlock: lambda x, a, m, n, r: (h := x + r * n[1](a(x))) + r * n[3](m(h)),
    SandwichBlock: lambda x, a, m, n, r: (h := x + r * n[1](a(n[0](x)))) + r * n[3](m(n[2](h))),
    ParallelBlock: lambda x, a, m, n, r: x + r * a(n[0](x)) + r * m(n[1](x)),
    PostResidualBlock: lambda x, a, m, n, r: n[1]((h := n[0](x + r * a(x))) + r * m(h)),
}
USED = {PreNormBlock: (0, 1), PostNormBlock: (1, 3), SandwichBlock: (0, 1, 2, 3), ParallelBlock: (0, 1)}


@pytest.mark.parametrize("multiplier", [1.0, 0.3])
@pytest.mark.parametrize("block_class", WIRINGS, ids=lambda block_class: block_class.__name__)
def test_blocks_are_wired_as_defined(block_class, multiplier):
    norms = [RMSNorm(8, 1e-2) for _ in NAMES]
    for seed, norm in enumerate(norms):
        norm.weight.data = rand(8, seed=seed + 10)
    attention, mlp, hidden = Branch(1), Branch(2), rand(4, 8, seed=3)
    used = {NAMES[index]: norms[index] for index in USED.get(block_class, (0, 1))}
    block = block_class(self_attn=attention, mlp=mlp, residual_multiplier=multiplier, **used)
    expected = WIRINGS[block_class](hidden, attention, mlp, norms, multiplier)
    torch.testing.assert_close(block(hidden, None, None), expected)


def test_a_block_of_one_part_adds_it_and_has_no_other():
    norm, part, hidden = RMSNorm(8, 1e-2), Branch(1), rand(4, 8, seed=3)
    norm.weight.data = rand(8, seed=10)
    for parts in ({"self_attn": part, "mlp": None}, {"self_attn": None, "mlp": part}):
        block = OnePartBlock(input_layernorm=norm, residual_multiplier=0.3, **parts)
        torch.testing.assert_close(block(hidden, None, None), hidden + 0.3 * part(norm(hidden)))
    for parts in ({"self_attn": None, "mlp": None}, {"self_attn": part, "mlp": part}):
        with pytest.raises(ModelError, match="of one part has a mixer or a feed-forward layer"):
            OnePartBlock(input_layernorm=norm, **parts)


def test_a_parallel_block_with_one_norm_reads_it_twice():
    norm, attention, mlp, hidden = RMSNorm(8, 1e-2), Branch(1), Branch(2), rand(4, 8, seed=3)
    block = ParallelBlock(input_layernorm=norm, self_attn=attention, mlp=mlp)
    torch.testing.assert_close(block(hidden, None, None), hidden + attention(norm(hidden)) + mlp(norm(hidden)))
    assert "post_attention_layernorm.weight" not in block.state_dict()
