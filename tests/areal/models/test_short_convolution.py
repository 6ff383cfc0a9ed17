"""A convolution sees its own document only, and the short convolution of LFM2 is that of transformers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from areal.api import ModelError
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.loading import initialize

CPU = torch.device("cpu")
# A document of one token, an empty one, one shorter than a filter, longer ones.
BOUNDS = [0, 1, 1, 3, 10, 14, 15, 20]


def numbers(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def packed(bounds):
    return PackedBackend(torch.tensor(bounds, dtype=torch.int32), bounds[-1], CPU)


def plain(inputs, weight, bias):
    """The formula, token by token."""
    size = weight.shape[1]
    rows = []
    for token in range(len(inputs)):
        terms = [inputs[token - shift] * weight[:, size - 1 - shift] for shift in range(min(size, token + 1))]
        rows.append(sum(terms) + (0 if bias is None else bias))
    return torch.stack(rows) if rows else inputs


@pytest.mark.parametrize("kernel_size", [1, 3, 4])
@pytest.mark.parametrize("with_bias", [False, True])
def test_each_document_is_convolved_as_if_it_were_alone(kernel_size, with_bias):
    inputs, weight = numbers(20, 5, seed=0).requires_grad_(), numbers(5, kernel_size, seed=1).requires_grad_()
    bias = numbers(5, seed=2).requires_grad_() if with_bias else None
    leaves = [inputs, weight, *([bias] if with_bias else [])]
    found = packed(BOUNDS).convolve(0, inputs, weight, bias)
    expected = torch.cat([plain(inputs[start:end], weight, bias) for start, end in itertools.pairwise(BOUNDS)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    factor = numbers(20, 5, seed=3)
    for one, other in zip(
        torch.autograd.grad((found * factor).sum(), leaves),
        torch.autograd.grad((expected * factor).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_numbers_that_are_not_finite_stay_in_their_document():
    inputs = numbers(20, 5, seed=0)
    inputs[9] = float("nan")
    assert packed(BOUNDS).convolve(0, inputs, numbers(5, 4, seed=1)).isfinite().all(1).sum() == 19


def test_narrow_numbers_are_summed_in_float32_and_rounded_once():
    inputs, weight = numbers(20, 5, seed=0), numbers(5, 4, seed=1).to(torch.bfloat16)
    found = packed(BOUNDS).convolve(0, inputs, weight)
    wide = packed(BOUNDS).convolve(0, inputs.bfloat16().float(), weight.float())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wide.bfloat16())


@pytest.mark.parametrize("bias", [False, True])
def test_the_short_convolution_is_that_of_transformers(bias):
    lfm2 = pytest.importorskip("transformers.models.lfm2")
    config = lfm2.Lfm2Config(hidden_size=16, conv_L_cache=3, conv_bias=bias, layer_types=["conv"], num_hidden_layers=1)
    theirs = lfm2.modeling_lfm2.Lfm2ShortConv(config, 0).eval()
    ours = ShortConvolution(0, SimpleNamespace(hidden_size=16), kernel_size=3, bias=bias)
    initialize(ours, std=0.4, seed=0)
    state = {name: tensor + 0.1 * numbers(*tensor.shape, seed=5) for name, tensor in ours.state_dict().items()}
    ours.load_state_dict(state)
    theirs.load_state_dict({**state, "conv.weight": state["conv.weight"][:, None]})
    hidden = numbers(20, 16, seed=4, dtype=torch.float32)
    with torch.no_grad():
        expected = torch.cat(
            [theirs(hidden[None, start:end])[0] for start, end in itertools.pairwise(BOUNDS) if end > start]
        )
        found = ours(hidden, None, packed(BOUNDS))
    assert set(state) == set(theirs.state_dict())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.std()))
    assert (ours(hidden, None, packed([0, 20])) - found).abs().max() > 0.1


def test_a_filter_without_a_token_and_a_backend_without_states_are_refused():
    args = SimpleNamespace(hidden_size=4)
    with pytest.raises(ModelError, match="expected at least 1"):
        ShortConvolution(0, args, kernel_size=0, bias=False)
    layer = ShortConvolution(7, args, kernel_size=3, bias=False)
    with pytest.raises(ModelError, match="layer 7 has a state, which PackedAttention cannot carry"):
        layer(torch.zeros(2, 4), None, PackedAttention(torch.tensor([0, 2]), 2, CPU))


def test_a_causal_filter_is_a_padded_convolution():
    inputs, weight = numbers(9, 5, seed=0), numbers(5, 4, seed=1)
    theirs = functional.conv1d(inputs.T[None], weight[:, None], padding=3, groups=5)[0, :, :9].T
    torch.testing.assert_close(packed([0, 9]).convolve(0, inputs, weight), theirs)
