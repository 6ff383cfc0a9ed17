"""Single switches of blocks: factors and gates of attention, norms before last matrices, growing queries, routers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from areal.api import ModelError
from areal.models.blocks.attention import PackedAttention, SelfAttention
from areal.models.blocks.block import PreNormBlock, SandwichBlock
from areal.models.blocks.mlp import MLP, GatedMLP
from areal.models.blocks.moe import Experts, Router, sparse_mixer
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.rotary import QueryGrowth, Rotary, rotate, scale_query
from areal.models.decoder_args import RotaryArgs

HIDDEN, HEADS, WIDTH = 12, 3, 4
SANDWICHED = (
    *("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
)
ARGS = SimpleNamespace(hidden_size=HIDDEN, num_heads=HEADS, num_kv_heads=1, head_dim=WIDTH)


def filled(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for value in module.state_dict().values():
        value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    return module.double()


def attended(module, hidden, rotation=None):
    """What the layer's backend gives, from its own projections, and what the layer makes of it."""
    bounds = torch.tensor([0, len(hidden)])
    seen = []

    def backend(*args, **options):
        seen.append(PackedAttention(bounds, len(hidden), hidden.device)(*args, **options))
        return seen[-1]

    result = module(hidden, rotation, backend)
    return seen[0], result


@pytest.fixture
def hidden():
    return torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(3)).double()


def test_a_factor_on_values_is_one_on_what_is_attended(hidden):
    plain, scaled = SelfAttention(0, ARGS), SelfAttention(0, ARGS, value_scale=0.7)
    filled(plain)
    scaled.double().load_state_dict(plain.state_dict())
    assert torch.allclose(attended(scaled, hidden)[0], 0.7 * attended(plain, hidden)[0])


def test_an_output_scale_is_a_number_that_is_stored_and_not_trained(hidden):
    def block(**options):
        norms = {name: RMSNorm(HIDDEN, 1e-3) for name in SANDWICHED}
        return SandwichBlock(
            self_attn=SelfAttention(0, ARGS), mlp=MLP(HIDDEN, 8, activation="relu"), **norms, **options
        )

    plain, scaled = filled(block()), block(output_scale=True).double()
    scaled.load_state_dict(plain.state_dict() | {"output_scale": torch.tensor([0.3])})
    assert "output_scale" not in dict(scaled.named_parameters())
    bounds = torch.tensor([0, len(hidden)])
    given = [each(hidden, None, PackedAttention(bounds, len(hidden), hidden.device)) for each in (plain, scaled)]
    assert torch.allclose(given[1], given[0] * scaled.output_scale)


def test_sums_that_are_counted_keep_the_stream_as_long_as_its_parts(hidden):
    norms = {name: RMSNorm(HIDDEN, 1e-3) for name in SANDWICHED}
    block = filled(
        SandwichBlock(self_attn=SelfAttention(0, ARGS), mlp=MLP(HIDDEN, 8, activation="relu"), **norms, first_sum=6)
    )
    backend = PackedAttention(torch.tensor([0, 7]), 7, hidden.device)
    first = block.post_attention_layernorm(block.self_attn(block.input_layernorm(hidden), None, backend))
    middle = (5 / 6) ** 0.5 * hidden + (1 / 6) ** 0.5 * first
    second = block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(middle)))
    expected = (6 / 7) ** 0.5 * middle + (1 / 7) ** 0.5 * second
    assert torch.allclose(block(hidden, None, backend), expected)


@pytest.mark.parametrize("weight", [False, True])
def test_a_norm_of_values_is_one_of_each_head_before_the_factor(hidden, weight):
    module = filled(SelfAttention(0, ARGS, value_norm=RMSNorm(WIDTH, 1e-3, weight=weight), value_scale=0.7))
    first = module.v_proj(hidden[:1])
    expected = 0.7 * first / (first.square().mean() + 1e-3).sqrt() * (module.v_norm.weight if weight else 1.0)
    assert torch.allclose(attended(module, hidden)[0][0], expected.expand(HEADS, WIDTH))


@pytest.mark.parametrize("kind", ["headwise", "elementwise"])
@pytest.mark.parametrize(("name", "function"), [("sigmoid", torch.sigmoid), ("softplus", functional.softplus)])
def test_gates_add_a_number_per_head_inside_of_their_function(hidden, kind, name, function):
    module = filled(SelfAttention(0, ARGS, gate=kind, gate_function=name, gate_bias=True))
    values, result = attended(module, hidden)
    logits = module.gate_proj(hidden).view(7, HEADS, -1) + module.gate_bias[None, :, None]
    assert torch.allclose(result, module.o_proj((values * function(logits)).flatten(1)))


def test_norms_stand_before_the_last_matrices(hidden):
    attention = filled(SelfAttention(0, ARGS, output_norm=RMSNorm(HEADS * WIDTH, 1e-3)))
    values, result = attended(attention, hidden)
    assert torch.allclose(result, attention.o_proj(attention.output_norm(values.flatten(1))))
    gated = filled(GatedMLP(HIDDEN, 8, activation="relu2", inner_norm=RMSNorm(8, 1e-3)))
    inner = functional.relu(gated.gate_proj(hidden)).square() * gated.up_proj(hidden)
    assert torch.allclose(gated(hidden), gated.down_proj(gated.inner_norm(inner)))
    plain = filled(MLP(HIDDEN, 8, activation="relu", inner_norm=RMSNorm(8, 1e-3)))
    inner = functional.relu(plain.up_proj(hidden))
    assert torch.allclose(plain(hidden), plain.down_proj(plain.inner_norm(inner)))


def test_a_block_norms_what_its_feed_forward_layer_gives(hidden):
    parts = {"input_layernorm": None, "post_attention_layernorm": RMSNorm(HIDDEN, 1e-3)}
    block = filled(
        PreNormBlock(
            self_attn=SelfAttention(0, ARGS),
            mlp=MLP(HIDDEN, 8, activation="relu"),
            post_feedforward_layernorm=RMSNorm(HIDDEN, 1e-3),
            **parts,
        )
    )
    backend = PackedAttention(torch.tensor([0, 7]), 7, hidden.device)
    middle = hidden + block.self_attn(hidden, None, backend)
    expected = middle + block.post_feedforward_layernorm(block.mlp(block.post_attention_layernorm(middle)))
    assert torch.allclose(block(hidden, None, backend), expected)


def test_queries_grow_without_being_rotated(hidden):
    positions = torch.tensor([0, 2, 3, 6, 7, 0, 11])
    rotation = QueryGrowth(0.3, 4, 1)(positions, torch.float64)
    expected = 1 + 0.3 * torch.log1p(torch.tensor([0, 0, 1, 1, 2, 0, 3]).double())
    assert torch.allclose(rotation.query_scale.flatten(), expected, atol=1e-7)
    heads = hidden.view(7, HEADS, WIDTH)
    assert torch.equal(rotate(heads, rotation), heads)
    module = filled(SelfAttention(0, ARGS))
    grown, _ = attended(module, hidden, rotation)
    weight = module.q_proj.weight.clone()
    row = torch.stack([attended(module_with(module, weight * scale), hidden)[0][place]
                       for place, scale in enumerate(expected)])  # fmt: skip
    assert torch.allclose(grown, row, atol=1e-6)
    with pytest.raises(ModelError, match="grow every None"):
        QueryGrowth(0.3, None)
    assert QueryGrowth(0.0, None)(positions, torch.float64).query_scale is None


def test_queries_grow_by_a_power_of_the_position_in_float32():
    positions = torch.tensor([0, 1, 2047, 100_000])
    expected = (1 + (positions.double() + 1) / 2048) ** 0.1
    growth = QueryGrowth(0.1, 2048, 1, growth_power=True)
    scale = growth(positions, torch.bfloat16).query_scale
    assert torch.allclose(scale.flatten().double(), expected, rtol=1e-6)
    heads = torch.ones(4, HEADS, WIDTH, dtype=torch.bfloat16)
    grown = scale_query(heads, growth(positions, torch.bfloat16))
    assert torch.equal(grown[:, 0, 0], expected.to(torch.bfloat16))
    table = Rotary(RotaryArgs(), 4, query_growth=0.1, growth_length=2048, growth_shift=1, growth_power=True)
    assert torch.equal(table(positions, torch.float32).query_scale, scale)


def module_with(module, weight):
    other = SelfAttention(0, ARGS).double()
    other.load_state_dict({**module.state_dict(), "q_proj.weight": weight})
    return other


def test_a_rotary_table_grows_queries_by_the_shifted_position():
    positions = torch.arange(9)
    rotation = Rotary(RotaryArgs(), 4, query_growth=0.3, growth_length=4, growth_shift=1)(positions, torch.float32)
    assert torch.allclose(rotation.query_scale, QueryGrowth(0.3, 4, 1).scale(positions, torch.float32))


def test_the_sparse_mixer_weighs_close_logits_only():
    logits = torch.tensor([[2.0, 1.99, 1.0, -3.0], [2.0, 1.0, 0.999, 0.5], [-1.0, -1.001, -2.0, -5.0]])
    weights, experts = sparse_mixer(logits, 2, 0.01)
    assert experts.tolist() == [[0, 1], [0, 1], [0, 1]]
    close = lambda *each: float(torch.tensor(each).softmax(0)[0])  # noqa: E731 - said three times
    expected = [[close(2.0, 1.99), 1.0], [1.0, close(1.0, 0.999)], [close(-1.0, -1.001), 1.0]]
    assert torch.allclose(weights, torch.tensor(expected))
    assert torch.equal(sparse_mixer(logits, 2, 0.0)[0], torch.ones(3, 2))


@pytest.mark.exhaustive
def test_the_sparse_mixer_is_that_of_phimoe():
    from transformers.models.phimoe.modeling_phimoe import sparsemixer

    logits = torch.randn(4000, 6, generator=torch.Generator().manual_seed(1)).double()
    for jitter in (0.0, 0.01, 0.2):
        expected, chosen = sparsemixer(logits, jitter, training=False)
        weights, experts = sparse_mixer(logits, 2, jitter)
        assert torch.equal(experts, chosen)
        assert torch.allclose(weights, expected)


def test_routing_weights_multiply_what_experts_get(hidden):
    router = filled(Router(HIDDEN, 5, 2, score="sigmoid"))
    experts = filled(Experts(HIDDEN, 6, 5, weigh_inputs=True), seed=1)
    weights, chosen = router(hidden)
    weights = weights.double()
    expected = torch.zeros_like(hidden)
    for token in range(7):
        for weight, number in zip(weights[token], chosen[token], strict=True):
            given = hidden[token] * weight
            inner = functional.silu(experts.gate_proj[number] @ given) * (experts.up_proj[number] @ given)
            expected[token] += experts.down_proj[number] @ inner
    assert torch.allclose(experts(hidden, weights, chosen), expected)
