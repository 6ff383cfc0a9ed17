"""States and filters of a beginning that is laid out once are those of its copies before each continuation."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest
import torch

from areal.api import OF_HEADS, DecayedSum, DeltaRule, SelectiveScan
from areal.models.blocks.packed_backend import PackedBackend, SharedPrefixBackend
from areal.models.blocks.shared_prefix import Branch

CPU = torch.device("cpu")
LAYOUTS = {
    "one group": ([4], [(0, 3), (0, 3), (0, 3)]),
    "unequal, an empty branch": ([5, 2, 1], [(0, 2), (0, 0), (0, 4), (1, 0), (1, 1), (2, 3)]),
    "interleaved": ([3, 4], [(0, 2), (1, 3), (0, 1), (1, 2)]),
    "wild": ([1, 40, 2], [(0, 30), (1, 1), (1, 2), (2, 33), (0, 1), (1, 29), (2, 1), (2, 2)]),
    "no branch": ([3, 2], []),
}


def numbers(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def backend(layout):
    roots, branches = LAYOUTS[layout]
    return SharedPrefixBackend(roots, [Branch(*branch) for branch in branches], CPU), sum(roots) + sum(
        length for _, length in branches
    )


def copied(layout):
    """Index of each token of all sequences with their own beginnings, bounds of those, and which of the tokens count:
    a root's once, a branch's."""
    roots, branches = LAYOUTS[layout]
    starts = list(itertools.accumulate(roots, initial=0))
    spans = [list(range(start, end)) for start, end in itertools.pairwise(starts)]
    documents, counted = list(spans), list(range(starts[-1]))
    first, position = starts[-1], starts[-1]
    for root, length in branches:
        documents.append(spans[root] + list(range(first, first + length)))
        counted += range(position + roots[root], position + roots[root] + length)
        first, position = first + length, position + roots[root] + length
    bounds = list(itertools.accumulate(map(len, documents), initial=0))
    return torch.tensor([token for document in documents for token in document]), torch.tensor(bounds), counted


def assert_agree(found, expected, leaves):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    factor = numbers(*found.shape, seed=9).detach()
    for one, other in zip(
        torch.autograd.grad((found * factor).sum(), leaves),
        torch.autograd.grad((expected * factor).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel_size", [1, 3, 6])
def test_filters_reach_from_a_branch_into_its_root(layout, kernel_size):
    shared, total = backend(layout)
    inputs, weight, bias = numbers(total, 5, seed=0), numbers(5, kernel_size, seed=1), numbers(5, seed=2)
    index, bounds, counted = copied(layout)
    alone = PackedBackend(bounds, len(index), CPU)
    expected = alone.convolve(0, inputs[index], weight, bias)[counted]
    assert_agree(shared.convolve(0, inputs, weight, bias), expected, [inputs, weight, bias])


@pytest.mark.sample(7)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["delta", "delta by channel", "sum"])
def test_branches_begin_with_the_last_state_of_their_root(layout, kind):
    shared, total = backend(layout)
    decay = numbers(total, 4, *((3,) if kind == "delta by channel" else ()), seed=3)
    tensors = {
        "query": numbers(total, 2, 3, seed=0),
        "key": numbers(total, 2, 3, seed=1),
        "value": numbers(total, 4, 2, seed=2),
        "log_decay": -decay.square(),
    }
    if kind != "sum":
        # Keys of length 1, so that states stay small.
        tensors["key"] = torch.nn.functional.normalize(tensors["key"], dim=-1)
        tensors["rate"] = numbers(total, 4, seed=4).sigmoid()
    record = DecayedSum if kind == "sum" else DeltaRule
    rule = record(**tensors, chunk=4)
    index, bounds, counted = copied(layout)
    repeated = record(**{f.name: getattr(rule, f.name)[index] for f in fields(rule) if f.name != "chunk"}, chunk=4)
    expected = PackedBackend(bounds, len(index), CPU).scan(0, repeated)[counted]
    assert_agree(shared.scan(0, rule), expected, list(tensors.values()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_branches_of_selective_scans_begin_with_the_last_state_of_their_root(layout):
    shared, total = backend(layout)
    leaves = [numbers(total, 1, 3, seed=0), numbers(total, 1, 3, seed=1), numbers(total, 4, seed=2)]
    leaves += [numbers(total, 4, seed=3), numbers(4, 3, seed=4)]

    def rule():
        query, key, value, step, rates = leaves
        return SelectiveScan(query=query, key=key, value=value, step=step.square(), rates=-rates.exp(), chunk=4)

    index, bounds, counted = copied(layout)
    repeated = rule()
    of_tokens = [f.name for f in fields(repeated) if f.name != "chunk" and f.metadata != OF_HEADS]
    repeated = replace(repeated, **{name: getattr(repeated, name)[index] for name in of_tokens})
    expected = PackedBackend(bounds, len(index), CPU).scan(0, repeated)[counted]
    assert_agree(shared.scan(0, rule()), expected, leaves)
