"""Orthogonalises matrices of which every rank has a part: each is gathered by one rank, which computes it and sends the
parts back.

Who computes what is decided once, by all ranks alike: the costliest matrices first, each by the one of its holders that
has the least to do. Nothing is sent where a rank holds whole matrices, as of experts. The work is cut into rounds, so
that a rank has room for a few whole matrices and not for all of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from areal.engine.train.muon import orthogonal, working_dtype
from areal.engine.train.ranks import box_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

ROUND_SIZE: Final = 1 << 26
"""Values of whole matrices that a rank holds at once, unless a single one is larger."""


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """What one rank has of a matrix: a rectangle."""

    rank: int
    rows: slice
    columns: slice
    is_sender: bool
    """Whether this copy is the one that is sent, where several ranks have the same part."""

    @property
    def num_values(self) -> int:
        """Of the rectangle."""
        return (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix and the rank that computes it."""

    name: str
    """Of the parameter."""
    index: int | None
    """Which one of a stack."""
    shape: tuple[int, int]
    owner: int
    parts: tuple[MatrixPart, ...]

    @property
    def travels(self) -> bool:
        """Whether any rank but the owner has a part of it."""
        return any(part.rank != self.owner for part in self.parts)


Bounds = tuple[tuple[int, int], ...]
"""Where a rank's part of a tensor begins and ends, along each dimension."""


class OrthogonaliseTogether:
    """For parts of matrices. Every rank of the group calls it with its parts of the same parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], group: ProcessGroup, *, device: torch.device) -> None:
        """parameters: in the order of the model, the same on every rank; device: of communication and computing."""
        self._group = group
        self._device = device
        self._dtype = working_dtype(next(iter(parameters.values())))
        self._own = {
            name: tuple((part.start, part.stop) for part in box_of(parameter)) for name, parameter in parameters.items()
        }
        boxes: list[dict[str, Bounds]] = [{} for _ in range(group.size())]
        dist.all_gather_object(boxes, self._own, group=group)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        matrices = divide_matrices(shapes, boxes)
        rank = group.rank()
        self._rounds = [
            (
                [matrix for matrix in found if any(part.rank == rank for part in matrix.parts)],
                any(matrix.travels for matrix in found),
            )
            for found in rounds_of(matrices)
        ]

    @torch.no_grad()
    def __call__(self, updates: Mapping[str, Tensor], /) -> None:
        """Orthogonalise `updates` in place, together; a missing update counts as zeros and stays missing."""
        for matrices, travels in self._rounds:
            if matrices or travels:
                self._compute(matrices, updates, travels=travels)

    def _compute(self, matrices: Sequence[Matrix], updates: Mapping[str, Tensor], *, travels: bool) -> None:
        rank, size = self._group.rank(), self._group.size()
        own = [matrix for matrix in matrices if matrix.owner == rank]
        leaving: list[list[Tensor]] = [[] for _ in range(size)]
        for matrix in matrices:
            for part in matrix.parts:
                if part.rank == rank and part.is_sender:
                    leaving[matrix.owner].append(self._read(updates, matrix, part).to(self._device, self._dtype))
        sizes = [sum(part.num_values for matrix in own for part in _sent(matrix, source)) for source in range(size)]
        arrived = self._exchange(leaving, sizes, travels=travels)
        whole = _assembled(own, arrived, self._dtype, self._device)
        _orthogonalise(whole)
        returning: list[list[Tensor]] = [[] for _ in range(size)]
        for matrix, turned in zip(own, whole, strict=True):
            for part in matrix.parts:
                returning[part.rank].append(turned[part.rows, part.columns])
        held = [(matrix, part) for matrix in matrices for part in matrix.parts if part.rank == rank]
        sizes = [sum(part.num_values for matrix, part in held if matrix.owner == source) for source in range(size)]
        arrived = self._exchange(returning, sizes, travels=travels)
        starts = [0] * size
        for matrix, part in held:
            values = arrived[matrix.owner][starts[matrix.owner] :][: part.num_values]
            starts[matrix.owner] += part.num_values
            if matrix.name in updates:
                target = self._target(updates, matrix)
                target.copy_(values.view(target.shape))

    def _read(self, updates: Mapping[str, Tensor], matrix: Matrix, part: MatrixPart) -> Tensor:
        if matrix.name in updates:
            return self._target(updates, matrix)
        return torch.zeros(part.num_values)

    def _target(self, updates: Mapping[str, Tensor], matrix: Matrix) -> Tensor:
        update = updates[matrix.name]
        return update if matrix.index is None else update[matrix.index - self._own[matrix.name][0][0]]

    def _exchange(self, leaving: list[list[Tensor]], sizes: list[int], *, travels: bool) -> list[Tensor]:
        """Send `leaving`; return what every rank sent to this one, as flat values."""
        flat = [[tensor.flatten() for tensor in tensors] for tensors in leaving]
        if not travels:
            mine = flat[self._group.rank()]
            empty = torch.empty(0, dtype=self._dtype, device=self._device)
            found = [empty] * self._group.size()
            found[self._group.rank()] = torch.cat(mine) if mine else empty
            return found
        lengths = [sum(tensor.numel() for tensor in tensors) for tensors in flat]
        everything = [tensor for tensors in flat for tensor in tensors]
        sent = torch.cat(everything) if everything else torch.empty(0, dtype=self._dtype, device=self._device)
        received = torch.empty(sum(sizes), dtype=self._dtype, device=self._device)
        dist.all_to_all_single(received, sent, sizes, lengths, group=self._group)
        return list(received.split(sizes))


def divide_matrices(shapes: Mapping[str, tuple[int, ...]], boxes: Sequence[Mapping[str, Bounds]]) -> list[Matrix]:
    """All matrices of parameters and stacks, in the order of the parameters, with their parts and owners.

    boxes: of each rank, by the name of the parameter. A part without values is none.
    """
    holders: list[tuple[str, int | None, tuple[int, int], dict[int, Bounds]]] = []
    for name, shape in shapes.items():
        rows, columns = shape[-2:]
        found: dict[int | None, dict[int, Bounds]] = defaultdict(dict)
        for rank, box in enumerate(box[name] for box in boxes):
            if all(start < stop for start, stop in box):
                for index in [None] if len(shape) == 2 else range(*box[0]):
                    found[index][rank] = box[-2:]
        holders += [
            (name, index, (rows, columns), found[index]) for index in sorted(found, key=lambda index: index or 0)
        ]
    owners = _owners([(_cost(shape), tuple(found)) for _, _, shape, found in holders], len(boxes))
    return [
        Matrix(name, index, shape, owner, _parts(found, owner))
        for (name, index, shape, found), owner in zip(holders, owners, strict=True)
    ]


def rounds_of(matrices: Sequence[Matrix]) -> list[list[Matrix]]:
    """Divide the matrices into rounds; in none, an owner has more than `ROUND_SIZE` values of several matrices."""
    rounds: dict[int, list[Matrix]] = defaultdict(list)
    last: dict[int, tuple[int, int]] = {}
    for matrix in matrices:
        values = matrix.shape[0] * matrix.shape[1]
        number, held = last.get(matrix.owner, (0, 0))
        if held and held + values > ROUND_SIZE:
            number, held = number + 1, 0
        last[matrix.owner] = (number, held + values)
        rounds[number].append(matrix)
    return [rounds[number] for number in sorted(rounds)]


def _cost(shape: tuple[int, int]) -> int:
    """Multiplications of a round of the iteration: two products of the smaller side's square, and one with it."""
    small, large = min(shape), max(shape)
    return small * small * (2 * large + small)


def _owners(work: Sequence[tuple[int, tuple[int, ...]]], num_ranks: int) -> list[int]:
    """For each (cost, candidates) the candidate that has the least, the costliest first; ties go to the lower rank."""
    loads = [0] * num_ranks
    owners = [0] * len(work)
    for number in sorted(range(len(work)), key=lambda number: -work[number][0]):
        cost, candidates = work[number]
        owners[number] = min(candidates, key=loads.__getitem__)
        loads[owners[number]] += cost
    return owners


def _parts(found: Mapping[int, Bounds], owner: int) -> tuple[MatrixPart, ...]:
    """Of copies, the owner's is sent if it has one, else the first rank's."""
    senders: dict[Bounds, int] = {}
    for rank, box in found.items():
        if rank == owner or box not in senders:
            senders[box] = rank
    return tuple(
        MatrixPart(rank, slice(*rows), slice(*columns), senders[(rows, columns)] == rank)
        for rank, (rows, columns) in found.items()
    )


def _sent(matrix: Matrix, source: int) -> list[MatrixPart]:
    return [part for part in matrix.parts if part.rank == source and part.is_sender]


def _assembled(
    own: Sequence[Matrix], arrived: Sequence[Tensor], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Whole matrices from what arrived of their parts, rank by rank in the order of the matrices."""
    starts = [0] * len(arrived)
    whole = []
    for matrix in own:
        tensor = torch.zeros(matrix.shape, dtype=dtype, device=device)
        for part in matrix.parts:
            if part.is_sender:
                values = arrived[part.rank][starts[part.rank] :][: part.num_values]
                starts[part.rank] += part.num_values
                tensor[part.rows, part.columns] = values.view(tensor[part.rows, part.columns].shape)
        whole.append(tensor)
    return whole


def _orthogonalise(whole: list[Tensor]) -> None:
    """In place; those of one shape together."""
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    for number, tensor in enumerate(whole):
        alike[tensor.shape].append(number)
    for numbers in alike.values():
        turned = orthogonal(torch.stack([whole[number] for number in numbers]))
        for number, tensor in zip(numbers, turned, strict=True):
            whole[number] = tensor
