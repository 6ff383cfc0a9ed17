"""Experts beside a feed-forward layer: the formula token by token, gradients, refused splits, operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from areal.api import ModelError
from areal.models.blocks.block import SandwichBlock
from areal.models.flops import matrix_values
from areal.models.parallel.checks import check_model
from areal.models.parallel.dims import ParallelDims
from areal.porting import reference
from areal.porting.records import UnsupportedError
from areal.porting.spec import ExpertsBesideSpec, LayerSpec, MlpSpec, NormSpec, RouterSpec

HIDDEN, EXPERTS = 12, 5
NORM = NormSpec(kind="rms", eps=1e-3)
SPEC = ExpertsBesideSpec(
    router=RouterSpec(num_experts=EXPERTS, top_k=2, score="softmax", order="score_first", normalize=True),
    experts=MlpSpec(gated=True, activation="silu", intermediate_size=7),
    router_norm=NORM, router_multiplier=HIDDEN**-0.5, mlp_norm=NORM, input_norm=NORM, output_norm=NORM,
)  # fmt: skip


@pytest.fixture
def beside():
    made, generator = reference.experts_beside(SPEC, HIDDEN), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + (parameter.dim() < 2))
    return made.double()


def normed(values, norm):
    return values * (values.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * norm.weight


def test_each_token_gets_its_experts_beside_what_the_feed_forward_layer_gave(beside):
    hidden, fed = torch.randn(2, 9, HIDDEN, dtype=torch.float64)
    found = beside(hidden, fed)
    experts = beside.experts
    for token in range(9):
        logits = beside.router.weight @ (normed(hidden[token], beside.router_norm) * HIDDEN**-0.5)
        best = logits.softmax(-1).topk(2)
        read, mixed = normed(hidden[token], beside.input_norm), torch.zeros(HIDDEN, dtype=torch.float64)
        for weight, expert in zip(best.values / best.values.sum(), best.indices, strict=True):
            inner = functional.silu(experts.gate_proj[expert] @ read) * (experts.up_proj[expert] @ read)
            mixed = mixed + weight * beside.expert_scale[expert] * (experts.down_proj[expert] @ inner)
        expected = normed(fed[token], beside.mlp_norm) + normed(mixed, beside.output_norm)
        torch.testing.assert_close(found[token], expected)


def test_a_block_reads_the_stream_behind_attention_for_both(beside):
    class Still(nn.Module):
        def forward(self, hidden, rotation, attention):
            return torch.zeros_like(hidden)

    names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    norms = {name: nn.Identity() for name in names}
    block = SandwichBlock(self_attn=Still(), mlp=nn.Identity(), experts_beside=beside, **norms)
    hidden = torch.randn(4, HIDDEN, dtype=torch.float64)
    torch.testing.assert_close(block(hidden, None, None), hidden + beside(hidden, hidden))


def test_all_parameters_are_trained(beside):
    hidden = torch.randn(40, HIDDEN, dtype=torch.float64)
    beside(hidden, hidden).square().sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in beside.parameters())


@pytest.mark.parametrize("dims", [ParallelDims(tp=2), ParallelDims(dp_shard=2, ep=2), ParallelDims(cp=2)])
def test_splits_are_refused(beside, dims):
    with pytest.raises(ModelError, match="experts beside feed-forward layers"):
        check_model(beside, dims, {})


def test_chosen_experts_count_as_work(beside):
    model = nn.Module()
    model.layers, model.layer_embeddings = nn.ModuleList([beside]), None
    assert matrix_values(model) == EXPERTS * HIDDEN + 2 * 3 * 7 * HIDDEN


def test_other_blocks_refuse_them():
    fed = MlpSpec(gated=True, activation="silu", intermediate_size=10)
    norms = {"input_layernorm": NORM}
    layer = LayerSpec(block="one_part", norms=norms, attention=None, feed_forward=fed)
    with pytest.raises(UnsupportedError, match="experts beside a feed-forward layer"):
        reference.block(replace(layer, experts_beside=SPEC), HIDDEN, 0)
