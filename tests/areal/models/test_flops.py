"""Counted FLOPs are those that torch counts while it computes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from areal.api import ModelError
from areal.models import from_config
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.flops import attention_products, forward_flops, training_flops, visible_pairs

DELTA = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 6, "value_dim": 5, "kernel_size": 4, "norm_eps": 1e-6}
MAMBA = {"num_heads": 4, "head_dim": 3, "num_groups": 2, "state_size": 7, "kernel_size": 4, "norm_eps": 1e-6}
SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "qwen2": {"tie_word_embeddings": True, "hidden_size": 64},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "decoder_sparse_step": 2},
}


def build(family, **changes):
    return from_config({"model_type": family, **SIZES, **FAMILIES[family], **changes}, seed=0)


def counted(model, lengths, *, backward=False):
    """What torch counts; one-token sequences, since its kernels also count pairs that are masked."""
    ids = torch.randint(0, 64, (sum(lengths),))
    positions = torch.cat([torch.arange(length) for length in lengths])
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    # The plain kernel: products that the counter knows, on every build of torch.
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        logits = model(ids, positions, bounds, max(lengths))
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_training_cost_what_torch_counts(family):
    model, lengths = build(family), [1] * 7
    assert forward_flops(model, lengths) == counted(model, lengths)
    assert training_flops(model, lengths) == counted(model, lengths, backward=True)


def test_attention_counts_the_pairs_that_are_visible():
    model, length = build("qwen3"), 12
    full = counted(model, [length])
    matrices = forward_flops(model, [length]) - 2 * attention_products(model, [length])
    # torch counts all pairs of a rectangle.
    assert full - matrices == 2 * attention_products(model, [length]) * length**2 // visible_pairs(length)


def test_only_predicted_tokens_meet_the_vocabulary():
    model = build("qwen3")
    spared = forward_flops(model, [10]) - forward_flops(model, [10], num_predicted=4)
    assert spared == 6 * 2 * SIZES["vocab_size"] * SIZES["hidden_size"]


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("chunk", [None, 1, 4, 20])
def test_visible_pairs_are_those_of_the_mask(window, chunk):
    for length in (1, 2, 7, 13):
        rows, columns = torch.arange(length)[:, None], torch.arange(length)
        visible = columns <= rows
        if window is not None:
            visible &= columns > rows - window
        if chunk is not None:
            visible &= columns // chunk == rows // chunk
        assert visible_pairs(length, window, chunk) == int(visible.sum())


def test_a_model_without_memory_can_be_counted():
    model = build("qwen3_moe")
    expected = training_flops(model, [5, 3])
    assert training_flops(model.to("meta"), [5, 3]) == expected


def test_unknown_attention_is_refused():
    model = build("qwen3")
    for layer in model.layers:
        layer.self_attn = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="FLOPs are unknown"):
        forward_flops(model, [3])


@pytest.mark.parametrize(
    ("mixer", "per_token"),
    [
        (lambda args: ShortConvolution(0, args, kernel_size=3, bias=True), 3 * 48),
        # Filters of 4 tokens over queries, keys and values; the state is read, written and read again.
        (lambda args: GatedDelta(0, args, **DELTA), 4 * (2 * 2 * 6 + 4 * 5) + 3 * 4 * 6 * 5),
        (
            lambda args: Mamba1(0, args, inner_size=20, state_size=7, step_rank=3, kernel_size=4),
            4 * 20 + 2 * 20 * 7,
        ),
        (lambda args: RGLRU(0, args, width=20, num_blocks=4, kernel_size=4, activation="gelu"), 4 * 20 + 20),
        (lambda args: Mamba2(0, args, **MAMBA), 4 * (4 * 3 + 2 * 2 * 7) + 2 * 4 * 3 * 7),
    ],
)
def test_a_token_meets_a_state_once_whatever_came_before_it(mixer, per_token):
    layer = torch.nn.Module()
    layer.self_attn = mixer(SimpleNamespace(hidden_size=48))
    model = SimpleNamespace(layers=[layer])
    assert attention_products(model, [7]) == 7 * per_token
    assert attention_products(model, [3, 4]) == 7 * per_token
