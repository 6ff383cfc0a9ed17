"""Convolutions and recurrences over packed tokens in which a common beginning of several sequences is laid out once.

A branch begins with what its root ends with: the state after the root's last token, and the last inputs of its filters.
Gradients of the branches add up there, and flow on through the root.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from areal.models.blocks.padded_attention import MAX_PADDING_RATIO, restoring_order
from areal.models.blocks.recurrences.chunks import Borders
from areal.models.blocks.recurrences.rows import PaddedRows, mapped
from areal.models.blocks.short_convolution import rounded, shifted_products
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import Recurrence
    from areal.models.blocks.shared_prefix import Branch


class _PieceRows(NamedTuple):
    """Roots, or branches, of similar length: one row each."""

    pieces: list[int]
    rows: PaddedRows


class _Taps(NamedTuple):
    """Products of filters that reach from a branch into its root."""

    target: Tensor
    """int64 [products]: token of a branch."""
    source: Tensor
    """int64 [products]: token of its root."""
    column: Tensor
    """int64 [products]: of the filter."""


class SharedPrefixStates:
    """The states of roots and branches. Make one per forward; layers share its index tables."""

    def __init__(self, root_lengths: Sequence[int], branches: Sequence[Branch], device: torch.device) -> None:
        """Lay out roots, end to end, and then branches, as `SharedPrefixAttention` has checked them."""
        self._device = device
        self._branches = [branch for branch in branches if branch.length]
        self._lengths = [*root_lengths, *(branch.length for branch in self._branches)]
        self._starts = list(accumulate(self._lengths, initial=0))
        self._places = upload(torch.cat([torch.arange(length) for length in self._lengths]), device)
        first = len(root_lengths)
        self._root_rows = self._similar(range(first))
        self._branch_rows = self._similar(range(first, len(self._lengths)))
        groups = [
            [(self._starts[piece], self._lengths[piece]) for piece in group.pieces]
            for group in (*self._root_rows, *self._branch_rows)
        ]
        self._restore = restoring_order(groups, device)
        self._taps: dict[int, _Taps] = {}
        # Row of each branch's root among the last states of all roots.
        place = {root: row for row, root in enumerate(piece for group in self._root_rows for piece in group.pieces)}
        self._roots_of = [
            torch.tensor([place[self._branches[piece - first].root] for piece in group.pieces], device=device)
            for group in self._branch_rows
        ]

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `StateBackend.convolve`."""
        total = shifted_products(inputs, weight, self._places)
        taps = self._taps_of(weight.shape[1])
        if taps.target.numel():
            before = inputs.index_select(0, taps.source).to(weight.dtype).to(total.dtype)
            total = total.index_add(0, taps.target, before * weight.to(total.dtype).T.index_select(0, taps.column))
        return rounded(total, weight, bias)

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """See `StateBackend.scan`."""
        found = [group.rows.scan(self._of(group, recurrence)) for group in self._root_rows]
        outputs = [output for output, _ in found]
        last = torch.cat([states for _, states in found])
        for group, roots in zip(self._branch_rows, self._roots_of, strict=True):
            outputs.append(group.rows.scan(self._of(group, recurrence), last.index_select(0, roots))[0])
        joined = torch.cat(outputs)
        return joined if self._restore is None else joined.index_select(0, self._restore)

    def _of(self, group: _PieceRows, recurrence: Recurrence) -> Recurrence:
        """Return the record of the tokens of some pieces."""

        def take(tensor: Tensor) -> Tensor:
            pieces = tensor.split(self._lengths)
            return torch.cat([pieces[piece] for piece in group.pieces])

        return mapped(recurrence, take)

    def _similar(self, pieces: Sequence[int]) -> list[_PieceRows]:
        """Return the pieces in groups in which padding to the longest wastes less than half the cells."""
        lengths = [self._lengths[piece] for piece in pieces]
        groups: dict[int, list[int]] = {}
        padded = len(lengths) * max(lengths, default=0) > MAX_PADDING_RATIO * sum(lengths)
        for piece, length in zip(pieces, lengths, strict=True):
            groups.setdefault((length - 1).bit_length() if padded else 0, []).append(piece)
        return [
            _PieceRows(group, PaddedRows([self._lengths[piece] for piece in group], Borders()))
            for group in groups.values()
        ]

    def _taps_of(self, kernel_size: int) -> _Taps:
        found = self._taps.get(kernel_size)
        if found is None:
            first = len(self._lengths) - len(self._branches)
            products = [
                (self._starts[first + number] + place, self._starts[root + 1] - back, kernel_size - 1 - place - back)
                for number, (root, length) in enumerate(self._branches)
                for place in range(min(length, kernel_size - 1))
                for back in range(1, min(self._lengths[root], kernel_size - 1 - place) + 1)
            ]
            columns = torch.tensor(products, dtype=torch.int64).reshape(-1, 3).to(self._device).unbind(1)
            found = self._taps[kernel_size] = _Taps(*columns)
        return found
