"""Embeddings that each layer gets for itself: the formula, packed documents, recomputation, a cache, refused splits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional

from areal.api import ModelError
from areal.engine.embedded.attention import StepAttention
from areal.engine.embedded.cache import KVCache
from areal.models.blocks.layer_embeddings import LayerEmbeddings, LayerInput
from areal.models.flops import matrix_values
from areal.models.parallel.checks import check_model
from areal.models.parallel.dims import ParallelDims
from areal.porting import reference
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    LayerEmbeddingsSpec,
    LayerInputSpec,
    LayerSpec,
    MlpSpec,
    NormSpec,
    RotarySpec,
)

HIDDEN, SIZE, VOCABULARY = 12, 5, 23
NORM = NormSpec(kind="rms", eps=1e-3)
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
LAYER = LayerSpec(
    block="sandwich", norms=dict.fromkeys(NORMS, NORM), rotary=0, output_scale=True,
    attention=AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=6, value_dim=6, scale=0.4),
    feed_forward=MlpSpec(gated=True, activation="silu", intermediate_size=10),
    layer_input=LayerInputSpec(size=SIZE, activation="gelu_pytorch_tanh", norm=NORM),
)  # fmt: skip
SPEC = ArchitectureSpec(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, layers=(LAYER,) * 3, final_norm=NORM, tied=True,
    rotaries=(RotarySpec(dim=6, theta=100.0),),
    layer_embeddings=LayerEmbeddingsSpec(
        vocab_size=VOCABULARY, size=SIZE, multiplier=math.sqrt(SIZE), projection_multiplier=HIDDEN**-0.5,
        sum_multiplier=math.sqrt(0.5), norm=NORM,
    ),
)  # fmt: skip


@pytest.fixture
def model():
    made, generator = reference.build(SPEC), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + (parameter.dim() < 2))
        for number, layer in enumerate(made.layers):
            layer.output_scale.fill_(0.7 + number / 10)
    return made.double()


def packed(made, tokens, lengths, backend=None):
    bounds = torch.tensor(list(itertools.accumulate(lengths, initial=0)), dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return made(tokens, positions, bounds, max(lengths), attention=backend)


def tokens_of(length):
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(5))


def normed(values, weight):
    return values * (values.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * weight


def test_a_layer_gets_its_part_of_the_table_and_of_the_projected_embedding(model):
    tokens = tokens_of(7)
    given, embedded = model.layer_embeddings, model.embed_tokens(tokens)
    found = given(tokens, embedded)
    assert found.shape == (7, 3, SIZE)
    for layer in range(3):
        part = slice(layer * SIZE, (layer + 1) * SIZE)
        own = given.table.weight[tokens, part] * math.sqrt(SIZE)
        projected = embedded @ given.projection.weight[part].T / math.sqrt(HIDDEN)
        expected = (normed(projected, given.norm.weight) + own) / math.sqrt(2)
        torch.testing.assert_close(found[:, layer], expected)


def test_a_block_adds_it_behind_its_branches_and_scales_the_sum():
    made = LayerInput(HIDDEN, SIZE, activation="silu", norm=torch.nn.Identity())
    hidden, given = torch.randn(4, HIDDEN), torch.randn(4, SIZE)
    inner = functional.silu(hidden @ made.gate.weight.T) * given
    torch.testing.assert_close(made(hidden, given), hidden + inner @ made.projection.weight.T)


def test_what_a_layer_gets_changes_the_logits_and_is_trained(model):
    tokens = tokens_of(6)
    before = packed(model, tokens, [6])
    before.square().sum().backward()
    trained = [name for name, value in model.named_parameters() if "layer_" in name and value.grad is not None]
    assert len(trained) == 3 + 3 * 3
    with torch.no_grad():
        model.layer_embeddings.table.weight[tokens[3]] += 1.0
    moved = (packed(model, tokens, [6]) - before).abs().amax(-1)
    first = int((tokens == tokens[3]).nonzero()[0])
    assert bool((moved[first:] > 1e-6).all())
    assert not moved[:first].any()


def test_packed_documents_are_those_of_each_alone_also_when_recomputed(model):
    lengths = [1, 9, 4]
    tokens = tokens_of(sum(lengths))
    expected = torch.cat([packed(model, part, [len(part)]) for part in tokens.split(lengths)])
    found = packed(model, tokens, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    parameters = [value for value in model.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(expected.square().sum(), parameters)
    model.set_gradient_checkpointing(True)
    again = torch.autograd.grad(packed(model, tokens, lengths).square().sum(), parameters)
    for ours, theirs in zip(again, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_cache_decodes_as_training_computes(model):
    tokens = tokens_of(8)
    expected = packed(model, tokens, [8])
    cache, found = KVCache(max_slots=2, max_length=16), []
    for first, last in [(0, 5), (5, 6), (6, 7), (7, 8)]:
        cache.reserve(1, last)
        fresh = first == 0
        step = StepAttention(
            cache,
            lengths=torch.tensor([] if fresh else [first], dtype=torch.int64),
            longest=1 if fresh else first + 1,
            uniform=True,
            fresh_lengths=[last] if fresh else [],
            fresh_slots=[0] if fresh else [],
        )
        positions, bounds = torch.arange(first, last), torch.tensor([0, last - first], dtype=torch.int32)
        found.append(model(tokens[first:last], positions, bounds, last - first, attention=step))
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dims", [ParallelDims(tp=2), ParallelDims(pp=2), ParallelDims(cp=2)])
def test_splits_that_would_part_them_are_refused(model, dims):
    with pytest.raises(ModelError, match="layers get embeddings of their own"):
        check_model(model, dims, {})


def test_their_matrices_count_as_work(model):
    with torch.device("meta"):
        norm = torch.nn.Identity()
        alone = LayerEmbeddings(
            HIDDEN, 3, vocab_size=7, size=SIZE, multiplier=1.0, projection_multiplier=1.0, sum_multiplier=1.0, norm=norm
        )
    whole, model.layer_embeddings = matrix_values(model), None
    assert whole - matrix_values(model) == alone.projection.weight.numel() == HIDDEN * 3 * SIZE
