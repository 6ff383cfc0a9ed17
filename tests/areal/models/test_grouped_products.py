"""Experts in one kernel compute what they compute one by one, and read nothing from the device."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from areal.models.blocks.grouped_products import RowRuns, _ZerosWithoutRows, grouped_linear, suits_grouping
from areal.models.blocks.moe import Experts, MixtureOfExperts, Router

EXPERTS, HIDDEN, WIDTH, TOP_K = 6, 16, 24, 2


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_experts(dtype, **options):
    experts = Experts(HIDDEN, WIDTH, EXPERTS, **options)
    for seed, parameter in enumerate(experts.parameters()):
        parameter.data = 0.3 * drawn(*parameter.shape, seed=seed)
    return experts.to(dtype)


def mixed(experts, dtype):
    """Output and gradients, of parameters and of what goes in; the last expert gets no rows."""
    hidden, weights = drawn(20, HIDDEN, dtype=dtype, seed=7), drawn(20, TOP_K, dtype=dtype, seed=8).abs()
    given = [hidden.requires_grad_(), weights.requires_grad_()]
    chosen = torch.stack([torch.randperm(EXPERTS - 1, generator=torch.Generator().manual_seed(n)) for n in range(20)])
    output = experts(*given, chosen[:, :TOP_K])
    output.backward(drawn(20, HIDDEN, dtype=dtype, seed=9))
    gradients = {name: parameter.grad for name, parameter in experts.named_parameters()}
    return {"output": output, "hidden": hidden.grad, "weights": weights.grad, **gradients}


def test_rows_meet_the_matrices_of_their_experts_in_values_and_gradients():
    weight, bias, rows = drawn(EXPERTS, WIDTH, HIDDEN), drawn(EXPERTS, WIDTH), drawn(9, HIDDEN, seed=1)
    numbers = torch.tensor([0, 0, 0, 2, 2, 3, 5, 5, 5])
    operands = [rows, weight, bias]
    for operand in operands:
        operand.requires_grad_()
    found = grouped_linear(rows, weight, bias, RowRuns.of(numbers, EXPERTS))
    expected = torch.stack([functional.linear(r, weight[e], bias[e]) for r, e in zip(rows, numbers, strict=True)])
    torch.testing.assert_close(found, expected)
    upstream = drawn(*found.shape, seed=2)
    grads = (torch.autograd.grad(each, operands, upstream) for each in (found, expected))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_what_the_kernel_leaves_for_experts_without_rows_is_replaced_by_zeros():
    weight = drawn(3, 2, 2).requires_grad_()
    passed = _ZerosWithoutRows.apply(weight, torch.tensor([0, 2, 2], dtype=torch.int32))
    assert torch.equal(passed, weight)
    passed.backward(torch.full((3, 2, 2), torch.nan).index_fill(0, torch.tensor(1), 5.0))
    assert weight.grad[:, 0, 0].tolist() == [0, 5, 0]


def test_a_torch_without_the_kernel_goes_without_it(monkeypatch):
    operands = drawn(1, HIDDEN, dtype=torch.bfloat16), drawn(EXPERTS, WIDTH, HIDDEN, dtype=torch.bfloat16)
    assert suits_grouping(*operands)
    monkeypatch.delattr(functional, "grouped_mm")
    assert not suits_grouping(*operands)


def test_ends_count_experts_without_rows():
    assert RowRuns.of(torch.tensor([1, 1, 4]), EXPERTS).ends.tolist() == [0, 2, 2, 2, 3, 3]
    assert RowRuns.of(torch.zeros(0, dtype=torch.int64), 2).ends.tolist() == [0, 0]


@pytest.mark.parametrize(
    "options",
    [{}, {"gated": False}, {"bias": True, "up_offset": 1.0}, {"weigh_inputs": True}],
    ids=["gated", "plain", "biases", "weighed inputs"],
)
def test_bfloat16_experts_agree_with_the_same_ones_in_float32(options):
    rounded, exact = make_experts(torch.bfloat16, **options), make_experts(torch.bfloat16, **options).float()
    assert suits_grouping(drawn(1, HIDDEN, dtype=torch.bfloat16), rounded.up_proj)
    assert not suits_grouping(drawn(1, HIDDEN), exact.up_proj)
    found, expected = mixed(rounded, torch.bfloat16), mixed(exact, torch.float32)
    for name, value in found.items():
        scale = expected[name].abs().max()
        assert (value.float() - expected[name]).abs().max() <= 0.03 * scale, name
    assert not found["up_proj"][-1].any()


@pytest.mark.parametrize("size", [12, 20])
def test_matrices_that_the_kernel_refuses_are_not_grouped(size):
    rows = drawn(1, size, dtype=torch.bfloat16)
    assert not suits_grouping(rows, drawn(EXPERTS, WIDTH, size, dtype=torch.bfloat16))


def test_a_mixture_reads_nothing_from_the_device():
    experts = make_experts(torch.bfloat16)
    mixture = MixtureOfExperts(router=Router(HIDDEN, EXPERTS, TOP_K), experts=experts).to(torch.bfloat16).to("meta")
    hidden = torch.empty(20, HIDDEN, dtype=torch.bfloat16, device="meta", requires_grad=True)
    mixture(hidden).sum().backward()
    assert hidden.grad.shape == hidden.shape
    assert experts.up_proj.grad.is_meta
