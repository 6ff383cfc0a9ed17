"""Cuts a batch: which rows each data rank computes, in which micro-batches, and which of their tokens go through the
model. Every rank finds the same answer by itself.

All ranks run the same number of micro-batches, since they communicate in each: one that has fewer runs blank ones.

Two kinds of tokens are spared. Tokens after the last predicted one, and that one itself, predict nothing. And sequences
that begin with the same tokens and images, as the samples of one prompt do, share the states of that beginning, so it
is laid out once. Both are exact: a state depends on nothing but the tokens up to it, and on the whole of an image that
it is in, which no cut divides.

Shape letters: S sequences, L padded length, T tokens that go through the model, N predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from areal.algorithm.images import image_keys
from areal.algorithm.packing import micro_batches, units
from areal.api import EngineError, PackedImage
from areal.models.blocks.packed_backend import SharedPrefixBackend
from areal.models.blocks.shared_prefix import Branch
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.algorithm.packing import Outlined
    from areal.api import AttentionBackend, PaddedBatch

MIN_SHARED_FRACTION: Final = 0.1
"""Beginnings are shared when that spares this part of the tokens: attention over them needs a mask, and less of one
than of the other does not pay."""


def divide_rows(batch: Outlined, parts: int, *, keep_groups: bool) -> list[list[int]]:
    """Row indices of every rank, ascending: longest first, each to the rank with the fewest tokens so far.

    keep_groups: rows of a group stay together; those of a unit (`areal.algorithm.packing.units`) always do. Ties go to
    the lower rank and to the earlier rows; ranks beyond the number of groups or units get none.
    """
    if parts == 1:
        return [list(range(batch.lengths.shape[0]))]
    lengths, groups = batch.lengths.tolist(), batch.groups.tolist()
    together: dict[int, list[int]] = {}
    for number, unit in enumerate(units(batch)):
        together.setdefault(groups[unit[0]] if keep_groups else number, []).extend(unit)
    loads = [(sum(lengths[row] for row in rows), rows) for rows in together.values()]
    divided: list[list[int]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    for load, rows in sorted(loads, key=lambda item: (-item[0], item[1][0])):
        rank = min(range(parts), key=tokens.__getitem__)
        divided[rank] += rows
        tokens[rank] += load
    return [sorted(rows) for rows in divided]


class Cutter:
    """Cuts rows of one batch into micro-batches by the tokens that go through the model.

    Example: four samples of 10 tokens each, whose first 6 are their prompt, are 6 + 4 * 4 = 22 tokens in one
    micro-batch, and 6 + 2 * 4 = 14 each in two. A budget of 20 therefore cuts them into two.
    """

    def __init__(self, batch: Outlined, beginnings: Beginnings | None = None) -> None:
        """beginnings: of the rows; None counts every row as if it were alone."""
        self._lengths, self._groups = batch.lengths.tolist(), batch.groups.tolist()
        self.longest = max(self._lengths)
        self._units = units(batch)
        self._numbers, self._splits = list(range(len(self._lengths))), [0] * len(self._lengths)
        if beginnings is not None:
            self._numbers, self._splits = beginnings.rows.tolist(), beginnings.lengths.tolist()

    def cut(self, budget: int, rows: Sequence[int] | None = None) -> list[list[int]]:
        """Row indices of micro-batches of at most `budget` tokens, in which rows of a group are together if they fit.

        Only together they share what they have in common. Rows of a unit (`areal.algorithm.packing.units`) are never
        separated: one that is too long has a micro-batch of its own. rows: whole units; None for all.
        """
        chosen = list(range(len(self._lengths))) if rows is None else sorted(rows)
        if chosen and self.count(chosen) <= budget:
            return [chosen]
        members: dict[int, list[list[int]]] = {}
        wanted = frozenset(chosen)
        for unit in self._units:
            if unit[0] in wanted:
                members.setdefault(self._groups[unit[0]], []).append(unit)
        pieces = [piece for found in members.values() for piece in self._pieces(found, budget)]
        parts = micro_batches([self._full(piece) - self._spared(piece) for piece in pieces], budget)
        return sorted(sorted(row for index in part for row in pieces[index]) for part in parts)

    def cut_all(self, budget: int, divided: list[list[int]]) -> list[list[list[int]]]:
        """Row indices of each micro-batch of each rank, [] for a blank one; all have as many as the busiest rank."""
        cuts = [self.cut(budget, rows) for rows in divided]
        most = max(map(len, cuts))
        return [cut + [[] for _ in range(most - len(cut))] for cut in cuts]

    def count(self, rows: Sequence[int]) -> int:
        """Tokens that go through the model when these rows are a micro-batch, or a few more: each row counts with its
        last token."""
        full, spared = self._full(rows), self._spared(rows)
        return full - spared if spared >= MIN_SHARED_FRACTION * full else full

    def largest(self, cuts: list[list[int]]) -> int:
        """Tokens of the largest of some micro-batches."""
        return max((self.count(rows) for rows in cuts), default=0)

    def _full(self, rows: Sequence[int]) -> int:
        return sum(self._lengths[row] for row in rows)

    def _spared(self, rows: Sequence[int]) -> int:
        """Tokens of beginnings that are there already."""
        shared = {self._numbers[row]: self._splits[row] for row in rows}
        return sum(self._splits[row] for row in rows) - sum(shared.values())

    def _pieces(self, found: list[list[int]], budget: int) -> list[list[int]]:
        """Rows of a group's units, in as few parts as the budget allows."""
        members = [row for unit in found for row in unit]
        if self.count(members) <= budget:
            return [members]
        parts = micro_batches([self._full(unit) for unit in found], budget)
        # Each part has all beginnings of the group, at worst.
        roots = sum({self._numbers[row]: self._splits[row] for row in members}.values())
        if roots < budget:
            own = [sum(self._lengths[row] - self._splits[row] for row in unit) for unit in found]
            sharing = micro_batches(own, budget - roots)
            parts = min(parts, sharing, key=len)
        return [[row for place in part for row in found[place]] for part in parts]


class Beginnings(NamedTuple):
    """What each of S rows may share with others; see `lay_out`."""

    rows: Tensor
    """int64 [S]: the first row with the same beginning."""
    lengths: Tensor
    """int64 [S]: tokens of the beginning."""

    @classmethod
    def of(cls, batch: PaddedBatch) -> Beginnings:
        """Compare rows of a batch in host memory. Only rows of one group are thought to share."""
        ends = batch.lengths - 1
        splits = torch.minimum(_splits(batch.loss_mask > 0), ends)
        rows = [_Row(index, *pair) for index, pair in enumerate(zip(splits.tolist(), ends.tolist(), strict=True))]
        groups, first = batch.groups.tolist(), [0] * len(rows)
        for alike in _members(rows, batch.tokens, image_keys(batch.images, len(rows)), batch.routes):
            found: dict[int, int] = {}
            for row in alike:
                first[row.index] = found.setdefault(groups[row.index], row.index)
        return cls(torch.tensor(first), splits)


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """Packed model input for the predicted tokens of one batch."""

    tokens: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T]: column of each token in its sequence."""
    cu_seqlens: Tensor
    """int32, in host memory, where they are read: bounds of the pieces laid end to end, from 0 to T."""
    max_seqlen: int
    """Length of the longest piece."""
    attention: AttentionBackend | None
    """What lets a piece see the beginning it continues; None when every piece is a sequence of its own."""
    source: Tensor
    """int64 [N]: index into T of the state that predicts each predicted token, in row-major order of the batch."""
    images: tuple[PackedImage, ...] = ()
    """In order of their tokens."""
    routes: Tensor | None = None
    """[T, M, K], as in the batch."""


@dataclass(slots=True)
class _Row:
    """One sequence: tokens[:split] can be shared, tokens[split:end] are its own, tokens[end] is predicted last."""

    index: int
    split: int
    end: int


def lay_out(
    batch: PaddedBatch, predicted_SL: Tensor, *, device: torch.device | None = None, length_limit: int | None = None
) -> TokenLayout | None:
    """Lay out the tokens marked in predicted_SL (bool [S, L], never column 0); None without any.

    batch and predicted_SL are in host memory, where everything is decided; device: of the result, None for the host.

    A beginning ends before the first token with loss_mask 1. Sequences share one when it is the same, token by token,
    image by image, and with its routes, if any; groups are not looked at. length_limit: see
    `CausalModel.length_limit`; nothing is shared beyond it. Images behind the last predicted token are left out; raises
    EngineError for one that it would cut.
    """
    device = device or batch.tokens.device
    marked = predicted_SL
    rows = _rows(marked, batch.loss_mask > 0)
    if not rows:
        return None
    members = _members(rows, batch.tokens, image_keys(batch.images, len(marked)), batch.routes)
    pieces = _Pieces(len(marked))
    is_shareable = length_limit is None or max(row.end for row in rows) <= length_limit
    if pieces_are_shared := is_shareable and _pays(rows, members):
        _add_shared(pieces, members)
    else:
        for row in rows:
            pieces.add_root(row.index, row.end, [row])
    piece_rows, starts, lengths = torch.tensor(pieces.spans).unbind(1)
    bounds = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    bounds[1:] = lengths.cumsum(0)
    piece_T = torch.repeat_interleave(lengths)
    column_T = torch.arange(int(bounds[-1])) - bounds[piece_T] + starts[piece_T]
    row_T = piece_rows[piece_T]
    row_N, column_N = marked.nonzero(as_tuple=True)
    state_N = column_N - 1
    # Index into T of column 0, for the shared part of a sequence and for its own part.
    root, own, split = (torch.tensor(values) for values in (pieces.root_offset, pieces.own_offset, pieces.split))
    offset_N = torch.where(state_N < split[row_N], root[row_N], own[row_N])
    attention = None
    if pieces_are_shared:
        attention = SharedPrefixBackend(pieces.root_lengths, pieces.branches, device)
    return TokenLayout(
        tokens=upload(batch.tokens[row_T, column_T], device),
        positions=upload(column_T, device),
        cu_seqlens=bounds.to(torch.int32),
        max_seqlen=int(lengths.max()),
        attention=attention,
        source=upload(offset_N + state_N, device),
        images=_packed_images(batch, rows, pieces),
        routes=None if batch.routes is None else upload(batch.routes[row_T, column_T], device),
    )


class _Pieces:
    """Collects spans of sequences in the order in which they are packed, roots before branches."""

    def __init__(self, num_rows: int) -> None:
        self.spans: list[tuple[int, int, int]] = []
        self.root_lengths: list[int] = []
        self.branches: list[Branch] = []
        self.root_offset = [0] * num_rows
        self.own_offset = [0] * num_rows
        self.split = [0] * num_rows
        self._num_tokens = 0

    def add_root(self, sequence: int, length: int, rows: list[_Row]) -> int:
        """tokens[:length] of `sequence`, which all of `rows` begin with; returns the root's index."""
        for row in rows:
            self.root_offset[row.index] = self._num_tokens
            self.split[row.index] = length
        self.spans.append((sequence, 0, length))
        self.root_lengths.append(length)
        self._num_tokens += length
        return len(self.root_lengths) - 1

    def add_branch(self, root: int, row: _Row) -> None:
        """tokens[split:end] of a sequence that begins with `root`."""
        length = row.end - row.split
        if length:
            self.own_offset[row.index] = self._num_tokens - row.split
            self.spans.append((row.index, row.split, length))
            self.branches.append(Branch(root, length))
            self._num_tokens += length


def _rows(marked: Tensor, mask: Tensor) -> list[_Row]:
    """Sequences with a predicted token."""
    ends = torch.where(marked, torch.arange(marked.shape[1]), 0).amax(1).tolist()
    splits = _splits(mask).tolist()
    return [
        _Row(index, min(split, end), end) for index, (split, end) in enumerate(zip(splits, ends, strict=True)) if end
    ]


def _splits(mask: Tensor) -> Tensor:
    """int64 [S]: column where the beginning of each row ends."""
    columns = torch.arange(mask.shape[1])
    # Column 0 is never predicted, so that a mask there says nothing about where the beginning ends.
    return torch.where(mask & (columns > 0), columns, mask.shape[1]).amin(1)


def _members(
    rows: list[_Row], tokens: Tensor, images: list[tuple[tuple[int, str], ...]], routes: Tensor | None
) -> list[list[_Row]]:
    """Rows with equal beginnings together, in order of first appearance. Equal placeholders are no equal images, and
    equal tokens that other experts computed have other states."""
    values, width = tokens.numpy().tobytes(), tokens.shape[1]
    size = tokens.element_size()
    chosen = None if routes is None else routes.numpy()
    found: dict[tuple[bytes, tuple[tuple[int, str], ...], bytes], list[_Row]] = {}
    for row in rows:
        start = row.index * width * size
        seen = tuple(key for key in images[row.index] if key[0] < row.split) if images[row.index] else ()
        experts = b"" if chosen is None else chosen[row.index, : row.split].tobytes()
        found.setdefault((values[start : start + row.split * size], seen, experts), []).append(row)
    return list(found.values())


def _packed_images(batch: PaddedBatch, rows: list[_Row], pieces: _Pieces) -> tuple[PackedImage, ...]:
    """Images among the packed tokens; one in a shared beginning once."""
    if batch.images is None:
        return ()
    found: dict[int, PackedImage] = {}
    images, ends = batch.images, {row.index: row.end for row in rows}
    places = zip(*(part.tolist() for part in (images.index, images.row, images.start, images.length)), strict=True)
    for number, row, start, length in places:
        if start >= ends.get(row, 0):
            continue
        if start + length > ends[row]:
            raise EngineError(f"row {row}: nothing is predicted after the image in column {start}, which cuts it")
        at = start + (pieces.root_offset[row] if start < pieces.split[row] else pieces.own_offset[row])
        found[at] = PackedImage(digest=images.digests[number], pixels=images.pixels_of(number), start=at, length=length)
    return tuple(found[at] for at in sorted(found))


def _pays(rows: list[_Row], members: list[list[_Row]]) -> bool:
    spared = sum((len(group) - 1) * group[0].split for group in members)
    return spared > 0 and spared >= MIN_SHARED_FRACTION * sum(row.end for row in rows)


def _add_shared(pieces: _Pieces, members: list[list[_Row]]) -> None:
    """Roots of all, a sequence with a beginning of its own being one; then what continues them."""
    roots = [
        pieces.add_root(group[0].index, group[0].split if len(group) > 1 else group[0].end, group) for group in members
    ]
    for root, group in zip(roots, members, strict=True):
        for row in group if len(group) > 1 else ():
            pieces.add_branch(root, row)
