"""Which rows of a batch each data rank computes, in which micro-batches. Every rank finds the same answer by itself.

All ranks run the same number of micro-batches, since they communicate in each: one that has fewer runs blank ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.algorithm.packing import select, units
from areal.engine.train.forward import cut_rows

if TYPE_CHECKING:
    from areal.api import PaddedBatch


def divide_rows(batch: PaddedBatch, parts: int, *, keep_groups: bool) -> list[list[int]]:
    """Row indices of every rank, ascending: longest first, each to the rank with the fewest tokens so far.

    keep_groups: rows of a group stay together; those of a unit (`areal.algorithm.packing.units`) always do. Ties go to
    the lower rank and to the earlier rows; ranks beyond the number of groups or units get none.
    """
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


def cuts_of(batch: PaddedBatch, divided: list[list[int]], budget: int) -> list[list[list[int]]]:
    """Row indices of each micro-batch of each rank, [] for a blank one; all have as many as the busiest rank."""
    cuts = [
        [[rows[index] for index in part] for part in cut_rows(select(batch, rows), budget)] if rows else []
        for rows in divided
    ]
    most = max(map(len, cuts))
    return [cut + [[] for _ in range(most - len(cut))] for cut in cuts]


def tokens_of(batch: PaddedBatch, cuts: list[list[int]]) -> int:
    """Of the largest of some micro-batches."""
    return max((int(batch.lengths[rows].sum()) for rows in cuts if rows), default=0)
