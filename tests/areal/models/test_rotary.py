"""Rotations are those of transformers, for every type, for a part of a head, and for documents of any length."""

from __future__ import annotations

import math

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.rotary import (
    Rotary,
    attention_magnitude,
    inverse_frequencies,
    rotate,
    scale_query,
    shortest_limit,
)
from areal.models.decoder_args import RotaryArgs

HEAD_DIM = 24
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
    "long_factor": [2.0 + 0.7 * pair for pair in range(6)],
    "original_max_position_embeddings": 10,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
TYPES = [
    {"rope_type": "linear", "factor": 3.0},
    {**LLAMA3, "original_max_position_embeddings": 32},
    {**LLAMA3, "original_max_position_embeddings": 8192, "low_freq_factor": 2.0, "high_freq_factor": 30.0},
    YARN,
    {**YARN, "truncate": False},
    {**YARN, "beta_fast": 4, "beta_slow": 0.5},
    {**YARN, "attention_factor": 1.7},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0},
    {**YARN, "factor": 1.0},
    {**LONGROPE, "factor": 16.0},
    {**LONGROPE, "factor": 0.5},
    {**LONGROPE, "attention_factor": 1.3, "factor": 16.0},
]


def arguments(parameters, theta=10000.0):
    return RotaryArgs(
        theta=theta,
        rotary_type=parameters["rope_type"],
        parameters={name: value for name, value in parameters.items() if name != "rope_type"},
    )


@pytest.mark.parametrize("partial", [0.5, 1.0])
@pytest.mark.parametrize("parameters", TYPES, ids=str)
def test_frequencies_and_magnitude_equal_those_of_transformers_to_the_last_bit(parameters, partial):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    dim = int(HEAD_DIM * partial)
    if parameters["rope_type"] == "longrope":
        parameters = {
            **parameters,
            **{name: (parameters[name] * 2)[: dim // 2] for name in ("short_factor", "long_factor")},
        }
    entry = {**parameters, "rope_theta": 5000.0, "partial_rotary_factor": partial}
    config = LlamaConfig(head_dim=HEAD_DIM, max_position_embeddings=256, rope_parameters=entry)
    compute = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    args = arguments(parameters, 5000.0)
    for length, table in zip((None, 11), inverse_frequencies(args, dim), strict=False):
        expected, magnitude = compute(config, torch.device("cpu"), seq_len=length)
        assert torch.equal(table, expected)
        assert attention_magnitude(args) == magnitude


@pytest.mark.parametrize("entry", [{}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.3, "factor": 2.5}])
def test_proportional_frequencies_equal_those_of_transformers_to_the_last_bit(entry):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "proportional", **entry}
    config = LlamaConfig(head_dim=HEAD_DIM, rope_parameters={**parameters, "rope_theta": 5000.0})
    expected, magnitude = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
    args = arguments(parameters, 5000.0)
    assert torch.equal(inverse_frequencies(args, HEAD_DIM)[0], expected)
    assert attention_magnitude(args) == magnitude


def reference_rotation(heads, angles, pairs):
    """Every pair of dimensions turned by its angle, in float64."""
    result = heads.double().clone()
    for index, (first, second) in enumerate(pairs):
        cos, sin = angles[:, None, index].cos(), angles[:, None, index].sin()
        result[..., first] = heads[..., first].double() * cos - heads[..., second].double() * sin
        result[..., second] = heads[..., second].double() * cos + heads[..., first].double() * sin
    return result


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [0, 2, 5, 12, HEAD_DIM])
def test_pairs_are_turned_by_their_angle_and_other_dimensions_kept(dim, interleaved):
    heads = torch.randn(7, 3, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 2, 0, 1, 40, 41])
    rotation = Rotary(RotaryArgs(theta=100.0), dim, interleaved=interleaved)(positions, torch.float32)
    half = math.ceil(dim / 2)
    assert rotation.dim == 2 * half  # an odd number is rounded up
    angles = positions.double()[:, None] * 100.0 ** (-torch.arange(half, dtype=torch.float64) * 2 / max(dim, 1))
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    expected = reference_rotation(heads, angles, pairs)
    torch.testing.assert_close(rotate(heads, rotation).double(), expected, rtol=1e-5, atol=1e-5)


def test_no_rotation_changes_nothing():
    heads = torch.randn(3, 2, 4)
    assert rotate(heads, None) is heads


def test_a_rotation_is_differentiable():
    heads = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    for interleaved in (False, True):
        rotation = Rotary(RotaryArgs(), 4, interleaved=interleaved)(torch.tensor([5, 6, 7]), torch.float64)
        assert torch.autograd.gradcheck(lambda heads, rotation=rotation: rotate(heads, rotation), (heads,))


def alone(rotary, length):
    return rotary(torch.arange(length), torch.float32).cos


def longrope():
    return Rotary(arguments({**LONGROPE, "factor": 16.0}), 12)


def test_the_length_of_each_packed_document_decides_about_long_factors():
    rotary = longrope()
    lengths = [3, 10, 11, 10, 25, 1]
    positions = torch.cat([torch.arange(length) for length in lengths])
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    expected = torch.cat([alone(rotary, length) for length in lengths])
    assert torch.equal(rotary(positions, torch.float32).cos, expected)
    assert torch.equal(rotary(positions, torch.float32, bounds).cos, expected)
    # Empty documents among the bounds say nothing.
    assert torch.equal(rotary(positions, torch.float32, torch.cat((bounds[:2], bounds[1:]))).cos, expected)
    assert not torch.equal(alone(rotary, 11)[:10], alone(rotary, 10))


def test_long_and_short_documents_are_those_of_transformers():
    from transformers.models.phi3.configuration_phi3 import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    config = Phi3Config(
        hidden_size=48,
        num_attention_heads=4,
        max_position_embeddings=160,
        original_max_position_embeddings=10,
        rope_parameters={**LONGROPE, "rope_theta": 10000.0},
        pad_token_id=0,
    )
    theirs = Phi3RotaryEmbedding(config)
    rotary = longrope()
    for length in (4, 10, 11, 40, 10):
        cos, _ = theirs(torch.zeros(1), torch.arange(length)[None])
        assert torch.equal(alone(rotary, length)[:, 0], cos[0])


@pytest.mark.parametrize(
    ("positions", "bounds"),
    [
        ([7, 8, 9, 10], None),  # a continuation
        ([9, 10], [0, 1, 2]),  # two decode steps that look like one document
        ([0, 1, 2, 3, 4, 5, 10], [0, 6, 7]),
        ([*range(8), *range(8, 14)], [0, 8, 14]),  # a beginning, and what continues it
    ],
)
def test_a_part_of_a_document_is_refused_where_its_length_matters(positions, bounds):
    with pytest.raises(ModelError, match="whether the whole of it is longer cannot be known"):
        longrope()(torch.tensor(positions), torch.float32, None if bounds is None else torch.tensor(bounds))


def test_parts_of_short_documents_need_no_length():
    rotary = longrope()
    assert torch.equal(rotary(torch.tensor([9, 4]), torch.float32).cos, alone(rotary, 10)[[9, 4]])


def test_the_shortest_limit_counts():
    other = Rotary(arguments({**LONGROPE, "factor": 2.0, "original_max_position_embeddings": 7}), 12)
    assert shortest_limit([None, Rotary(RotaryArgs(), 4)]) is None
    assert shortest_limit([longrope(), None, other]) == 7


def test_queries_grow_with_their_position_in_each_document_as_in_transformers():
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.cat([torch.arange(length) for length in (5, 40, 1, 9)])
    query = torch.randn(len(positions), 2, 8, generator=torch.Generator().manual_seed(0))
    rotation = Rotary(RotaryArgs(), 4, query_growth=0.3, growth_length=4)(positions, torch.float32)
    expected = query * get_llama_4_attn_scale(positions[None], 0.3, 4)[0].transpose(0, 1)
    torch.testing.assert_close(scale_query(query, rotation), expected, rtol=1e-6, atol=0)
    assert not torch.equal(expected[20], query[20])


def test_queries_without_growth_are_left_as_they_are():
    query = torch.randn(3, 2, 8)
    assert scale_query(query, None) is query
    assert scale_query(query, Rotary(RotaryArgs(), 4)(torch.arange(3), torch.float32)) is query
    with pytest.raises(ModelError, match="grow every 0 positions"):
        Rotary(RotaryArgs(), 4, query_growth=0.1, growth_length=0)


def test_yarn_in_an_odd_number_of_dimensions_is_refused_and_others_are_rounded_up():
    yarn = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    with pytest.raises(ModelError, match="turns 3 dimensions of a head, expected an even number"):
        Rotary(RotaryArgs(rotary_type="yarn", parameters=yarn), 3)
    assert Rotary(RotaryArgs(rotary_type="default", parameters={"rope_theta": 10000.0}), 3).dim == 4


def test_types_and_lists_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="'dynamic' is not implemented"):
        Rotary(arguments({"rope_type": "dynamic", "factor": 2.0}), 8)(torch.arange(3), torch.float32)
    with pytest.raises(ModelError, match="short_factor has 6 numbers, expected 4"):
        Rotary(arguments({**LONGROPE, "factor": 2.0}), 8)(torch.arange(3), torch.float32)
