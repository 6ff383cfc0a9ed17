"""Differential attention: pairs of heads as the formula says, document by document, as transformers computes it."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.differential import DifferentialHeads
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs
from areal.models.flops import attention_products
from areal.models.loading import initialize
from areal.models.parallel import ParallelDims
from areal.models.parallel.checks import check_model

HIDDEN, HEADS, KV_HEADS, WIDTH, LAYER = 24, 8, 4, 6, 3
ARGS = SimpleNamespace(hidden_size=HIDDEN, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH)
BOUNDS = [0, 1, 4, 12]


def attention(**options):
    return SelfAttention(LAYER, ARGS, differential_eps=2e-3, **options)


def packed(bounds):
    return PackedBackend(torch.tensor(bounds, dtype=torch.int32), bounds[-1], torch.device("cpu"))


def plain(module, hidden):
    """One document, head by head, in the words of the paper; without rotation."""
    query, key, value = (getattr(module, f"{part}_proj")(hidden).unflatten(-1, (-1, WIDTH)) for part in ("q", "k", "v"))
    pairs, length = HEADS // 2, len(hidden)
    start = 0.8 - 0.6 * math.exp(-0.3 * LAYER)
    parts = dict(module.differential.named_parameters())
    factor = torch.exp(parts["lambda_q1"] @ parts["lambda_k1"]) - torch.exp(parts["lambda_q2"] @ parts["lambda_k2"])
    outputs = []
    for pair in range(pairs):
        maps = []
        for head in (pair, pair + pairs):
            scores = query[:, head] @ key[:, head // (HEADS // KV_HEADS)].T * WIDTH**-0.5
            hides = torch.ones(length, length).triu(1).bool()
            maps.append(scores.masked_fill(hides, float("-inf")).softmax(-1))
        shared = pair // (HEADS // KV_HEADS)
        values = torch.cat((value[:, shared], value[:, shared + KV_HEADS // 2]), -1)
        difference = (maps[0] - (factor + start) * maps[1]) @ values
        normed = difference / (difference.square().mean(-1, keepdim=True) + 2e-3).sqrt()
        outputs.append((1 - start) * normed)
    return module.o_proj(torch.cat(outputs, -1))


@torch.no_grad()
def test_pairs_of_heads_are_taken_from_each_other_as_the_formula_says():
    module = attention(qkv_bias=True)
    initialize(module, std=0.5, seed=0)
    module.double()
    hidden = torch.randn(BOUNDS[-1], HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = [plain(module, hidden[start:end]) for start, end in itertools.pairwise(BOUNDS)]
    torch.testing.assert_close(module(hidden, None, packed(BOUNDS)), torch.cat(expected), rtol=1e-10, atol=1e-11)


@torch.no_grad()
def test_every_document_gets_what_the_module_of_transformers_gives_it_alone():
    from transformers.models.diffllama import modeling_diffllama as library
    from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig

    config = DiffLlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH,
        rms_norm_eps=2e-3,
        attn_implementation="eager",
    )
    theirs, turn = library.DiffLlamaAttention(config, LAYER), library.DiffLlamaRotaryEmbedding(config)
    module = attention()
    initialize(module, std=0.5, seed=0)
    names = {name: name.removeprefix("differential.") for name in module.state_dict()}
    theirs.load_state_dict({names[name]: tensor for name, tensor in module.state_dict().items()})
    hidden = torch.randn(BOUNDS[-1], HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = []
    for start, end in itertools.pairwise(BOUNDS):
        alone, length = hidden[None, start:end], end - start
        hides = torch.full((length, length), float("-inf")).triu(1)[None, None]
        expected.append(theirs(alone, turn(alone, torch.arange(length)[None]), hides)[0][0])
    positions = torch.cat([torch.arange(end - start) for start, end in itertools.pairwise(BOUNDS)])
    found = module(hidden, Rotary(RotaryArgs(), WIDTH)(positions, torch.float32), packed(BOUNDS))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_gradients_pass_gradcheck():
    heads = DifferentialHeads(1, 3, 1e-3)
    initialize(heads, std=0.4, seed=0)
    heads.double()
    attended = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    names, parameters = zip(*heads.named_parameters(), strict=True)

    def run(attended, *parameters):
        return torch.func.functional_call(heads, dict(zip(names, parameters, strict=True)), (attended,))

    assert torch.autograd.gradcheck(run, (attended, *parameters))


@pytest.mark.parametrize("options", [{"num_kv_heads": 1}, {"gate": "headwise"}, {"sinks": True}], ids=str)
def test_what_pairs_cannot_have_is_refused(options):
    with pytest.raises(ModelError, match="differential attention with"):
        attention(**options)


@pytest.mark.parametrize("dims", [{"tp": 2}, {"cp": 2}], ids=str)
def test_heads_that_are_taken_from_each_other_stay_on_one_rank(dims):
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Module()])
    model.layers[0].self_attn = attention()
    with pytest.raises(ModelError, match="takes heads from each other, which have to be on one rank"):
        check_model(model, ParallelDims(**dims), {})


def test_values_of_both_heads_of_a_pair_are_counted():
    layer = torch.nn.Module()
    layer.self_attn = attention()
    assert attention_products(SimpleNamespace(layers=[layer]), [3]) == 6 * HEADS * (WIDTH + 2 * WIDTH)
