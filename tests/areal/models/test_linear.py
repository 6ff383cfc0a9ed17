"""Linear layers compute the same by either library, forward and backward, and only large products change theirs."""

from __future__ import annotations

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.linear import (
    Linear,
    ProductRates,
    current_products,
    linear,
    measure_products,
    use_products,
)

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


@pytest.fixture(autouse=True)
def restored():
    before = current_products()
    yield
    use_products(before)


def by_onednn(product):
    """Names of the operations in the forward pass that oneDNN computed."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        product()
    return sum(event.count for event in profile.key_averages() if event.key == "mkldnn::_linear_pointwise")


@pytest.mark.parametrize("rows_in_out", [(96, 128, 384), (67, 384, 128), (513, 96, 96), (64, 256, 258)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_torch(rows_in_out, bias):
    rows, width, out = rows_in_out
    generator = torch.Generator().manual_seed(0)
    layer = Linear(width, out, bias=bias)
    inputs = torch.randn(rows, width, generator=generator)
    upstream = torch.randn(rows, out, generator=generator)
    found = {}
    for library in ("torch", "onednn"):
        use_products(library)
        given = inputs.clone().requires_grad_()
        layer.zero_grad()
        result = layer(given)
        result.backward(upstream)
        found[library] = [result.detach(), given.grad, *(each.grad.clone() for each in layer.parameters())]
    for ours, theirs in zip(*found.values(), strict=True):
        assert (ours - theirs).abs().max() <= 5e-6 * ours.abs().max()


def test_equal_products_are_equal_bit_by_bit():
    use_products("onednn")
    inputs, weight = torch.randn(300, 128), torch.randn(256, 128)
    assert torch.equal(linear(inputs, weight), linear(inputs.clone(), weight.clone()))


def test_only_large_float32_products_on_cpus_change_hands():
    use_products("onednn")
    weight = torch.randn(256, 128)
    assert by_onednn(lambda: linear(torch.randn(96, 128), weight)) == 1
    assert by_onednn(lambda: linear(torch.randn(16, 128), weight)) == 0
    assert by_onednn(lambda: linear(torch.randn(64, 128).double(), weight.double())) == 0
    assert by_onednn(lambda: linear(torch.randn(2, 64, 128), weight)) == 0
    assert linear(torch.randn(64, 128, device="meta"), weight.to("meta")).shape == (64, 256)
    use_products("torch")
    assert by_onednn(lambda: linear(torch.randn(64, 128), weight)) == 0


def test_a_frozen_weight_gets_no_gradient():
    use_products("onednn")
    inputs, weight = torch.randn(64, 128, requires_grad=True), torch.randn(256, 128)
    linear(inputs, weight).sum().backward()
    assert torch.allclose(inputs.grad, weight.sum(0).expand(64, -1), atol=1e-4)
    assert weight.grad is None


def test_a_bias_is_trained_beside_a_frozen_weight():
    use_products("onednn")
    bias = torch.zeros(256, requires_grad=True)
    linear(torch.randn(96, 128), torch.randn(256, 128), bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((256,), 96.0))


def test_the_choice_needs_a_clear_lead():
    assert ProductRates(torch=100, onednn=119).fastest == "torch"
    assert ProductRates(torch=100, onednn=121).fastest == "onednn"
    rates = measure_products()
    assert rates.torch > 0
    assert rates.onednn > 0, "float32 products of oneDNN are exact here"


def test_an_unknown_library_is_refused():
    with pytest.raises(ModelError, match="expected torch, or onednn"):
        use_products("mkl")
