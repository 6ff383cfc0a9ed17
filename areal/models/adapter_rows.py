"""Rows of an adapter's table: how parameters of ours are stored on disk. Each kind of row is exactly invertible.

Names hold `*` for the layer number. A name may be that of a module or parameter: what follows it (".weight", ".bias")
is the same on both sides. Tensors [out, in] are ours; `transposed` says that a file has them as [in, out]; vectors are
never transposed.

A row can also read a part of one of our tensors, for processes that hold no more than parts.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Box = tuple[slice, ...]
"""Part of a tensor: start and stop along each dimension."""


class Stored(Protocol):
    """A tensor on disk, of which parts can be read."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
        ...

    def read(self, box: Box | None = None) -> Tensor:
        """Return a part of it, or all."""
        ...


@dataclass(frozen=True)
class Row(ABC):
    """One row of a table. `alternative`: another layout of the same parameters that is accepted on reading."""

    ours: str | tuple[str, ...]
    """Name or names with us; several are stored as one tensor, in this order."""
    on_disk: str
    alternative: Row | None = field(default=None, kw_only=True)

    @property
    def targets(self) -> tuple[str, ...]:
        """`ours` as a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def names(self, name: str, shapes: Sequence[torch.Size]) -> tuple[str, ...]:
        """Return the names on disk, from the one that `on_disk` gives for a layer, and the shapes with us."""
        return (name,)

    @abstractmethod
    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """Return our tensors, of `shapes`, from those stored; head_dim: of the attention they belong to, 0
        elsewhere."""

    @abstractmethod
    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """Return the inverse of `read`."""

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """`box` of our tensor number `index`: `read(...)[index][box]`, reading no more than is needed where the layout
        allows it; here everything that is stored with it."""
        return self.read([tensor.read() for tensor in stored], shapes, head_dim)[index][box]


@dataclass(frozen=True)
class Renamed(Row):
    """The same tensor under another name."""

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(stored)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(tensors)

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        return stored[0].read(box)


@dataclass(frozen=True)
class Reshaped(Row):
    """The same numbers in another shape, e.g. (1, -1) for a vector that is stored as one row; -1: what is left."""

    shape: tuple[int, ...]

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [stored[0].reshape(shapes[0])]

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [tensors[0].reshape(self.shape)]


@dataclass(frozen=True)
class Transposed(Row):
    """A matrix that is stored as [in, out]."""

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [_transposed(stored[0], True)]

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return [_transposed(tensors[0], True)]

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        return _read_rows(stored[0], box, [shapes[0][0]], 0, groups=1, transposed=True)


@dataclass(frozen=True)
class SwappedHalves(Row):
    """The second half of every head's features is stored before the first.

    That makes a rotation that turns clockwise (NanoChat) one that turns as all others do.
    """

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return self.write(stored, head_dim)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row. Its own inverse."""
        return [tensors[0].unflatten(0, (-1, 2, head_dim // 2)).flip(1).flatten(0, 2)]


@dataclass(frozen=True)
class Rows(Row):
    """Modules stacked along their output features in one matrix.

    arrangement: "concat", all rows of the first, then of the second; "interleaved", a row of each in turn.
    """

    arrangement: str = "concat"
    transposed: bool = False

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = _transposed(stored[0], self.transposed)
        rows = [shape[0] for shape in shapes]
        return _split(whole, rows, self._groups(rows, head_dim), 0)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        groups = self._groups([tensor.shape[0] for tensor in tensors], head_dim)
        return [_transposed(_merge(tensors, groups, 0), self.transposed)]

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        rows = [shape[0] for shape in shapes]
        return _read_rows(stored[0], box, rows, index, groups=self._groups(rows, head_dim), transposed=self.transposed)

    def _groups(self, rows: Sequence[int], head_dim: int) -> int:
        """Return the number of equal runs in which every part has its share of rows."""
        return _groups(self, self.arrangement, rows[0])


@dataclass(frozen=True)
class QueryKeyValue(Rows):
    """Query, key and value projections in one matrix; `ours` names them in the order of their rows in a group.

    arrangement: "concat", one group; "per_head", a group for each query head, where there are as many key heads (the
    GPT-NeoX way); "per_group", one for each key-value head with all query heads that share it (Falcon, InternLM 2);
    "N_blocks", N equal groups whatever the heads are ("4_blocks" in CodeGen, whose order is query, value, key);
    "interleaved", a row of each in turn.
    """

    def _groups(self, rows: Sequence[int], head_dim: int) -> int:
        if self.arrangement == "per_head":
            return rows[self._index("q_proj")] // max(head_dim, 1)
        if self.arrangement == "per_group":
            return rows[self._index("k_proj")] // max(head_dim, 1)
        blocks = re.fullmatch(r"(\d+)_blocks", self.arrangement)
        return int(blocks[1]) if blocks else super()._groups(rows, head_dim)

    def _index(self, projection: str) -> int:
        return next((index for index, name in enumerate(self.targets) if projection in name), 0)


@dataclass(frozen=True)
class Experts(Row):
    """A tensor per expert (or head) on disk, `{expert}` in its name; ours are stacked along dimension 0.

    Two of ours (gate and up) are one matrix per expert; arrangement as in Rows.
    """

    arrangement: str = "concat"
    transposed: bool = False

    def names(self, name: str, shapes: Sequence[torch.Size]) -> tuple[str, ...]:
        """See Row."""
        return tuple(name.replace("{expert}", str(expert)) for expert in range(shapes[0][0]))

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        return _split_experts(self, torch.stack(list(stored)), shapes)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        return list(_merge_experts(self, tensors).unbind())

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        return _read_experts(self, stored, shapes, index, box)


@dataclass(frozen=True)
class StackedExperts(Row):
    """One tensor of all experts on disk: [experts, out, in], or [experts, in, out] when transposed.

    Two of ours (gate and up) share it, arrangement as in Rows. "flattened": one of ours, experts and the next dimension
    are one, [experts * out, in] or when transposed [experts * in, out] (DBRX).
    """

    arrangement: str = "concat"
    transposed: bool = False

    def read(self, stored: Sequence[Tensor], shapes: Sequence[torch.Size], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = stored[0].unflatten(0, (shapes[0][0], -1)) if self.arrangement == "flattened" else stored[0]
        return _split_experts(self, whole, shapes)

    def write(self, tensors: Sequence[Tensor], head_dim: int) -> list[Tensor]:
        """See Row."""
        whole = _merge_experts(self, tensors)
        return [whole.flatten(0, 1) if self.arrangement == "flattened" else whole]

    def read_part(
        self, stored: Sequence[Stored], shapes: Sequence[torch.Size], head_dim: int, index: int, box: Box
    ) -> Tensor:
        """See Row."""
        number = shapes[0][0]
        rows = stored[0].shape[0] // number if self.arrangement == "flattened" else None
        return _read_experts(
            self, [_OneOfStack(stored[0], expert, rows) for expert in range(number)], shapes, index, box
        )


@dataclass(frozen=True)
class _OneOfStack:
    """A `Stored` of one expert out of a tensor of all."""

    stack: Stored
    expert: int
    rows: int | None
    """Of each expert, where experts and rows are one dimension."""

    @property
    def shape(self) -> torch.Size:
        """Of the expert."""
        rest = self.stack.shape[1:]
        return rest if self.rows is None else torch.Size((self.rows, *rest))

    def read(self, box: Box | None = None) -> Tensor:
        """See `Stored`."""
        box = tuple(slice(0, size) for size in self.shape) if box is None else box
        if self.rows is None:
            return self.stack.read((slice(self.expert, self.expert + 1), *box))[0]
        start = self.expert * self.rows
        return self.stack.read((slice(start + box[0].start, start + box[0].stop), *box[1:]))


def _merge(parts: Sequence[Tensor], groups: int, dim: int) -> Tensor:
    """Stack along `dim`: the first of `groups` shares of each part, then the second of each, and so on."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.unflatten(dim, (groups, -1)) for part in parts], dim + 1).flatten(dim, dim + 1)


def _split(whole: Tensor, sizes: Sequence[int], groups: int, dim: int) -> list[Tensor]:
    """Return the inverse of `_merge` for parts of `sizes` along `dim`."""
    if len(sizes) == 1:
        return [whole]
    pieces = whole.unflatten(dim, (groups, -1)).split([size // groups for size in sizes], dim + 1)
    return [piece.flatten(dim, dim + 1) for piece in pieces]


def _transposed(matrix: Tensor, transposed: bool) -> Tensor:
    return matrix.T if transposed and matrix.dim() == 2 else matrix


def _merge_experts(row: Experts | StackedExperts, tensors: Sequence[Tensor]) -> Tensor:
    whole = _merge(tensors, _groups(row, row.arrangement, tensors[0].shape[1]), 1)
    return whole.transpose(1, 2) if row.transposed and whole.dim() == 3 else whole


def _split_experts(row: Experts | StackedExperts, whole: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    ours = whole.transpose(1, 2) if row.transposed and whole.dim() == 3 else whole
    sizes = [shape[1] for shape in shapes]
    return _split(ours, sizes, _groups(row, row.arrangement, sizes[0]), 1)


def _read_experts(
    row: Experts | StackedExperts, stored: Sequence[Stored], shapes: Sequence[torch.Size], index: int, box: Box
) -> Tensor:
    """`box` of our stack number `index`, from one stored tensor for each expert."""
    rows = [shape[1] for shape in shapes]
    groups = _groups(row, row.arrangement, rows[0])
    experts = range(box[0].start, box[0].stop)
    return torch.stack(
        [
            _read_rows(stored[expert], box[1:], rows, index, groups=groups, transposed=row.transposed)
            for expert in experts
        ]
    )


def _read_rows(stored: Stored, box: Box, sizes: Sequence[int], index: int, *, groups: int, transposed: bool) -> Tensor:
    """`box` of part number `index` of those that `_merge` stacked along dimension 0: one run of rows that has it."""
    if len(sizes) == 1:
        groups = 1
    share, before, together = sizes[index] // groups, sum(sizes[:index]) // groups, sum(sizes) // groups
    wanted = torch.arange(box[0].start, box[0].stop)
    places = wanted // share * together + before + wanted % share
    run = slice(int(places[0]), int(places[-1]) + 1)
    is_turned = transposed and len(box) == 2
    found = stored.read((box[1], run)).T if is_turned else stored.read((run, *box[1:]))
    return found if run.stop - run.start == len(wanted) else found[places - run.start]


def _groups(row: Row, arrangement: str, size: int) -> int:
    known = {"concat": 1, "flattened": 1, "interleaved": size}
    if arrangement not in known:
        raise ModelError(f"row {row.on_disk!r} of an adapter's table has the unknown arrangement {arrangement!r}")
    return known[arrangement]
