"""Every row of an adapter's table reads parts of parameters: what slicing the whole gives, and of the file no more."""

import random

import pytest
import torch

from areal.models.adapter import (
    QueryKeyValue,
    Renamed,
    Reshaped,
    Rows,
    SeparateExperts,
    StackedExperts,
    SwappedHalves,
    Transposed,
)

MATRIX, VECTOR = [(12, 6)], [(12,)]
GATE_UP, UNEQUAL = [(8, 6), (8, 6)], [(16, 6), (8, 6), (8, 6)]
EXPERTS, BIASES = [(4, 8, 6), (4, 8, 6)], [(4, 8), (4, 8)]
NAMES = ("q_proj", "k_proj", "v_proj")
CASES = {
    "renamed": (Renamed("a", "b"), MATRIX),
    "renamed vector": (Renamed("a", "b"), VECTOR),
    "reshaped": (Reshaped("a", "b", (1, -1)), VECTOR),
    "transposed": (Transposed("a", "b"), MATRIX),
    "transposed vector": (Transposed("a", "b"), VECTOR),
    "swapped halves": (SwappedHalves("a", "b"), MATRIX),
    "rows": (Rows(("a", "b"), "c"), GATE_UP),
    "rows, interleaved and transposed": (Rows(("a", "b"), "c", "interleaved", transposed=True), GATE_UP),
    "attention per group": (QueryKeyValue(NAMES, "c", "per_group"), UNEQUAL),
    "attention per head": (QueryKeyValue(NAMES, "c", "per_head", transposed=True), [(8, 6)] * 3),
    "attention in blocks": (QueryKeyValue(NAMES, "c", "2_blocks"), UNEQUAL),
    "biases of attention": (QueryKeyValue(NAMES, "c", "per_group", transposed=True), [(16,), (8,), (8,)]),
    "experts": (SeparateExperts("a", "b.{expert}"), EXPERTS[:1]),
    "experts together": (SeparateExperts(("a", "b"), "c.{expert}", transposed=True), EXPERTS),
    "experts, interleaved": (SeparateExperts(("a", "b"), "c.{expert}", "interleaved"), EXPERTS),
    "biases of experts": (SeparateExperts(("a", "b"), "c.{expert}", "interleaved", transposed=True), BIASES),
    "stacked": (StackedExperts(("a", "b"), "c"), EXPERTS),
    "stacked and transposed": (StackedExperts(("a", "b"), "c", "interleaved", transposed=True), EXPERTS),
    "stacked biases": (StackedExperts(("a", "b"), "c"), BIASES),
    "flattened": (StackedExperts("a", "b", "flattened"), EXPERTS[:1]),
    "flattened and transposed": (StackedExperts("a", "b", "flattened", transposed=True), EXPERTS[:1]),
    "flattened biases": (StackedExperts("a", "b", "flattened"), BIASES[:1]),
}
HEAD_DIM = 4
NO_MORE = ("renamed", "transposed", "rows", "experts", "experts together", "stacked", "flattened")
"""Layouts in which a run of rows is a run of rows on disk too."""


class InMemory:
    def __init__(self, tensor):
        self.tensor, self.shape, self.num_read = tensor, tensor.shape, 0

    def read(self, box=None):
        found = self.tensor if box is None else self.tensor[box]
        self.num_read += found.numel()
        return found


def boxes(shape, number):
    generator = random.Random(len(shape))
    for _ in range(number):
        bounds = [sorted(generator.sample(range(size + 1), 2)) for size in shape]
        yield tuple(slice(*bound) for bound in bounds)
    yield tuple(slice(0, size) for size in shape)


@pytest.mark.parametrize(("row", "shapes"), CASES.values(), ids=CASES)
def test_a_part_is_what_a_slice_of_the_whole_is(row, shapes):
    ours = [torch.randn(shape) for shape in shapes]
    sizes = [tensor.shape for tensor in ours]
    on_disk = row.write(ours, HEAD_DIM)
    for index, tensor in enumerate(ours):
        for box in boxes(tensor.shape, 20):
            stored = [InMemory(part.contiguous()) for part in on_disk]
            found = row.read_part(stored, sizes, HEAD_DIM, index, box)
            assert torch.equal(found, tensor[box]), (index, box)


@pytest.mark.parametrize("name", NO_MORE)
def test_no_more_is_read_than_the_part_has(name):
    row, shapes = CASES[name]
    ours = [torch.randn(shape) for shape in shapes]
    on_disk = row.write(ours, HEAD_DIM)
    for index, tensor in enumerate(ours):
        for box in boxes(tensor.shape, 20):
            stored = [InMemory(part.contiguous()) for part in on_disk]
            row.read_part(stored, [part.shape for part in ours], HEAD_DIM, index, box)
            assert sum(part.num_read for part in stored) == tensor[box].numel(), (index, box)
