"""Layers that attend to the keys and values of earlier ones: the same packed, as branches, recomputed and from a cache,
and refused where a split would part them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from areal.api import ModelError
from areal.engine.embedded.attention import StepAttention
from areal.engine.embedded.cache import KVCache
from areal.models.blocks.packed_backend import PackedBackend, SharedPrefixBackend
from areal.models.blocks.shared_keys import KeptKeys, shares_keys
from areal.models.blocks.shared_prefix import Branch
from areal.models.parallel.checks import check_model
from areal.models.parallel.dims import ParallelDims
from areal.porting import reference
from areal.porting.spec import ArchitectureSpec, AttentionSpec, LayerSpec, MlpSpec, NormSpec, RotarySpec

CPU = torch.device("cpu")
VOCABULARY, WINDOW = 23, 3
NORM = NormSpec(kind="rms", eps=1e-3)
ATTENTION = AttentionSpec(
    num_heads=4, num_kv_heads=2, head_dim=6, value_dim=6, scale=0.4, query_norm=NORM, key_norm=NORM,
    value_norm=replace(NORM, weight=False),
)  # fmt: skip
WIDE = replace(ATTENTION, num_kv_heads=1, head_dim=8, value_dim=8, keys_as_values=True)


def layer(attention, window, *, shares=False):
    norms = {"input_layernorm": NORM, "post_attention_layernorm": NORM}
    fed = MlpSpec(gated=True, activation="silu", intermediate_size=10)
    mixer = replace(attention, shares_keys=shares)
    return LayerSpec(block="pre", norms=norms, attention=mixer, feed_forward=fed, window=window, rotary=window is None)


LAYERS = (
    *(layer(ATTENTION, WINDOW), layer(WIDE, None), layer(ATTENTION, WINDOW), layer(WIDE, None)),
    *(layer(ATTENTION, WINDOW, shares=True), layer(WIDE, None, shares=True), layer(ATTENTION, WINDOW, shares=True)),
)


def model(layers=LAYERS, dtype=torch.float64):
    rotaries = (RotarySpec(dim=6, theta=100.0), RotarySpec(dim=8, theta=500.0))
    layers = tuple(replace(each, rotary=int(bool(each.rotary))) for each in layers)
    spec = ArchitectureSpec(
        vocab_size=VOCABULARY, hidden_size=12, layers=layers, final_norm=NORM, tied=True, rotaries=rotaries
    )
    made, generator = reference.build(spec), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + (parameter.dim() < 2))
    return made.to(dtype)


def tokens_of(*lengths):
    return torch.randint(VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(5))


def packed(made, tokens, lengths, backend=None):
    bounds = torch.tensor(list(itertools.accumulate(lengths, initial=0)), dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return made(tokens, positions, bounds, max(lengths), attention=backend)


def test_layers_take_the_keys_of_the_last_layer_of_their_kind_and_have_none_of_their_own():
    made = model()
    sources = [made.layers[number].self_attn.keys_of for number in range(len(LAYERS))]
    assert sources == [0, 1, 2, 3, 2, 3, 2]
    own = {name.split(".")[3] for name, _ in made.named_parameters() if name.startswith("layers.4.self_attn")}
    assert own == {"q_proj", "q_norm", "o_proj"}
    assert "layers.1.self_attn.v_proj.weight" not in made.state_dict()


def test_values_are_what_the_key_projection_gives_before_norm_and_rotation():
    made = model(LAYERS[:2])
    attention, seen = made.layers[1].self_attn, {}
    attention.k_proj.register_forward_hook(lambda module, given, result: seen.update(projected=result))

    class Recorder(PackedBackend):
        def __call__(self, layer, query, key, value, **options):
            seen[layer] = value
            return super().__call__(layer, query, key, value, **options)

    tokens = tokens_of(6)
    packed(made, tokens, [6], Recorder(torch.tensor([0, 6]), 6, CPU))
    heads = seen["projected"].unflatten(-1, (-1, 8))
    torch.testing.assert_close(seen[1], heads * (heads.square().mean(-1, keepdim=True) + 1e-3).rsqrt())


@pytest.mark.parametrize("lengths", [[1, 9, 4], [13, 2]])
def test_packed_documents_are_those_of_each_alone_with_equal_gradients_when_recomputed(lengths):
    made, tokens = model(), tokens_of(*lengths)
    expected = torch.cat([packed(made, part, [len(part)]) for part in tokens.split(lengths)])
    found = packed(made, tokens, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    factor = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    parameters = list(made.parameters())
    gradients = torch.autograd.grad((expected * factor).sum(), parameters)
    made.set_gradient_checkpointing(True)
    again = torch.autograd.grad((packed(made, tokens, lengths) * factor).sum(), parameters)
    for ours, theirs in zip(again, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_branches_see_the_keys_of_their_root():
    made, roots, branches = model(), [7, 3], [(0, 4), (1, 6), (0, 2)]
    tokens = tokens_of(*roots, *(length for _, length in branches))
    pieces = tokens.split([*roots, *(length for _, length in branches)])
    expected = [packed(made, piece, [len(piece)]) for piece in pieces[:2]]
    for (root, length), piece in zip(branches, pieces[2:], strict=True):
        whole = torch.cat((pieces[root], piece))
        expected.append(packed(made, whole, [len(whole)])[-length:])
    positions = [torch.arange(length) for length in roots]
    positions += [torch.arange(roots[root], roots[root] + length) for root, length in branches]
    backend = SharedPrefixBackend(roots, [Branch(*branch) for branch in branches], CPU)
    bounds = torch.tensor([0, len(tokens)], dtype=torch.int32)
    found = made(tokens, torch.cat(positions), bounds, len(tokens), attention=backend)
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("start", [1, 5])
def test_a_cache_holds_the_keys_of_their_own_layers_only_and_decodes_as_training_computes(start):
    made, tokens = model(), tokens_of(12)
    expected = packed(made, tokens, [12])
    cache = KVCache(max_slots=2, max_length=64)
    found = []
    for first, last in [(0, start), *((place, place + 1) for place in range(start, 12))]:
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
        found.append(made(tokens[first:last], positions, bounds, last - first, attention=step))
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-10, atol=1e-10)
    assert sorted(cache._layers) == [0, 1, 2, 3]


def test_what_no_layer_gives_is_refused():
    with pytest.raises(
        ModelError, match="layer 1 attends to the keys and values of an earlier layer with a window of 3"
    ):
        model((layer(WIDE, None), layer(ATTENTION, WINDOW, shares=True)))
    other = replace(ATTENTION, num_kv_heads=4)
    with pytest.raises(ModelError, match=r"number of heads \(6, 6, 2\), but has \(6, 6, 4\)"):
        model((layer(ATTENTION, WINDOW), layer(other, WINDOW, shares=True)))
    with pytest.raises(ModelError, match="layer 2, which gave none in this forward"):
        KeptKeys().take(2, None, None, keep=False)


@pytest.mark.parametrize("split", [{"tp": 2}, {"cp": 2}, {"pp": 2}])
def test_splits_are_refused_by_name(split):
    made = model()
    assert shares_keys(made)
    with pytest.raises(ModelError, match="layers attend to the keys and values of earlier ones"):
        check_model(made, ParallelDims(**split), {})


def test_a_piece_of_a_pipeline_without_the_layer_that_gives_keys_is_refused():
    made = model(dtype=torch.float32)
    with pytest.raises(ModelError, match="gave none in this forward"):
        made.layers[4](torch.zeros(2, 12), None, PackedBackend(torch.tensor([0, 2]), 2, CPU))
