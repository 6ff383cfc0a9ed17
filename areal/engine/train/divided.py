"""A batch whose rows are divided over data ranks: what every process knows of all rows, and the tensors of its own.

Rank 0 divides a batch, and every other rank is given its own rows only, so that what rank 0 sends grows with the batch
and not with the number of ranks. Ranks of one pipeline, tensor or context parallel group compute the same rows: the
first of them gets these from rank 0, and hands them on through the groups.

    batch = engine.divide(whole)                     # on rank 0
    learner.run(Learner.learn, batch, denominators)  # calls Learner.learn with `batch.for_rank(rank)` on each rank
    engine.train_batch(batch, loss_fn)               # which is called on every rank
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from areal.algorithm.images import images_to
from areal.algorithm.packing import select
from areal.api import BatchImages
from areal.engine.train.packing import Beginnings, divide_rows
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import PaddedBatch
    from areal.engine.train.ranks import Ranks

_SHARING: Final = ("pp", "cp", "tp")
"""Ways of splitting along which ranks have the same rows, in the order in which they hand them on."""
_IMAGES: Final = "images."
"""Before names of tensors of a batch's images, where they are sent beside its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedBatch:
    """All rows of a batch in outline, and the tensors of some."""

    lengths: Tensor
    """int64 [S], true length of each sequence, on the CPU."""
    groups: Tensor
    """int64 [S], on the CPU."""
    rows_per_unit: int
    """See `PaddedBatch.rows_per_unit`."""
    beginnings: Beginnings
    """What rows may share, on the CPU."""
    width: int
    """L: columns of the whole batch."""
    divided: list[list[int]]
    """Rows of each data rank, ascending."""
    holders: tuple[tuple[int, bool], ...]
    """Of each rank: its place among the data ranks, and whether it is the first of those with the same rows."""
    rows: list[int] | None = None
    """Whose tensors are in `part`, ascending; None for all."""
    part: PaddedBatch | None = None
    """None without rows, and where they are still to come from the first of the group."""
    is_awaited: bool = False
    """Whether the ranks that share the rows have yet to hand them on."""

    @classmethod
    def of(cls, batch: PaddedBatch, ranks: Ranks, *, keep_groups: bool) -> DividedBatch:
        """Divide a whole batch; see `divide_rows`."""
        outline = cls(
            lengths=batch.lengths.cpu(),
            groups=batch.groups.cpu(),
            rows_per_unit=batch.rows_per_unit,
            beginnings=Beginnings.of(to_device(batch, torch.device("cpu"))),
            width=batch.tokens.shape[1],
            divided=[],
            holders=ranks.holders(),
            part=batch,
        )
        return replace(outline, divided=divide_rows(outline, ranks.count("data"), keep_groups=keep_groups))

    def for_rank(self, rank: int) -> DividedBatch:
        """Return what one rank is given: its own rows, if it is the first that has them."""
        place, is_first = self.holders[rank]
        rows = self.divided[place]
        part = self.select(rows) if is_first and rows else None
        return replace(self, rows=rows, part=part, is_awaited=True)

    def limited_to(self, rows: Sequence[int]) -> DividedBatch:
        """Return the batch as if there were only some rows; the rest of each rank's work is left out."""
        chosen = frozenset(rows)
        return replace(self, divided=[[row for row in own if row in chosen] for own in self.divided])

    def select(self, rows: Sequence[int]) -> PaddedBatch:
        """Return some of the rows that are here, as `areal.algorithm.packing.select` does."""
        assert self.part is not None, "rows of another rank, or rows that were not handed on yet"
        if self.rows is None:
            return select(self.part, rows)
        places = {row: place for place, row in enumerate(self.rows)}
        return select(self.part, [places[row] for row in rows])

    def received(self, ranks: Ranks) -> DividedBatch:
        """Return the batch with the tensors of all rows that this rank computes, in host memory: micro-batches are cut
        and laid out there, and only they go to the device.

        Ranks with the same rows call it together, after `for_rank`; it does nothing a second time.
        """
        part = self.part
        if self.is_awaited and not ranks.is_alone and self.divided[ranks.place("data")]:
            for way in _SHARING:
                if _has_source(ranks, way):
                    part = _handed_on(None if part is None else to_device(part, ranks.device), ranks, way)
        host = torch.device("cpu")
        return replace(self, part=None if part is None else to_device(part, host), is_awaited=False)


def _has_source(ranks: Ranks, way: str) -> bool:
    """Whether the first rank of this one's group along `way` has the rows when it is the turn of `way`."""
    later = _SHARING[_SHARING.index(way) + 1 :]
    return ranks.count(way) > 1 and all(ranks.place(other) == 0 for other in later)


def _handed_on(part: PaddedBatch | None, ranks: Ranks, way: str) -> PaddedBatch:
    """Send the tensors of the first rank along `way` to the others."""
    described: tuple[type[PaddedBatch], tuple[str, ...], dict[str, tuple[torch.dtype, torch.Size]]] | None = None
    tensors: dict[str, Tensor] = {}
    if ranks.place(way) == 0:
        assert part is not None, "the first rank has the rows"
        tensors = _tensors_of(part) | {f"{_IMAGES}{name}": value for name, value in _tensors_of(part.images).items()}
        digests = () if part.images is None else part.images.digests
        described = (type(part), digests, {name: (value.dtype, value.shape) for name, value in tensors.items()})
    described = ranks.sent(described, way, 0)
    assert described is not None, "sent by the first"
    kind, digests, shapes = described
    for name, (dtype, shape) in shapes.items():
        if name not in tensors:
            tensors[name] = torch.empty(shape, dtype=dtype, device=ranks.device)
        # As bytes: gloo does not know the 16-bit integers of routes.
        dist.broadcast(tensors[name].view(torch.uint8), group=ranks.group(way), group_src=0)
    values: dict[str, Any] = {name: value for name, value in tensors.items() if not name.startswith(_IMAGES)}
    pictures: dict[str, Any] = {
        name.removeprefix(_IMAGES): value for name, value in tensors.items() if name.startswith(_IMAGES)
    }
    return kind(**values, images=BatchImages(**pictures, digests=digests) if digests else None)


def _tensors_of(record: PaddedBatch | BatchImages | None) -> dict[str, Tensor]:
    found = {} if record is None else {item.name: getattr(record, item.name) for item in fields(record)}
    return {name: value.contiguous() for name, value in found.items() if isinstance(value, torch.Tensor)}


def to_device(batch: PaddedBatch, device: torch.device) -> PaddedBatch:
    """Move all tensors of a batch to `device`; returns the same object when they are there already."""
    moved: dict[str, Any] = {
        item.name: upload(value, device)
        for item in fields(batch)
        if isinstance(value := getattr(batch, item.name), torch.Tensor) and value.device != device
    }
    if batch.images is not None and batch.images.pixels.device != device:
        moved["images"] = images_to(batch.images, device)
    return replace(batch, **moved) if moved else batch
