"""Cuts a batch: which rows each data rank computes, in which micro-batches. Every rank finds the same answer by itself.

All ranks run the same number of micro-batches, since they communicate in each: one that has fewer runs blank ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.algorithm.packing import micro_batches, select, units

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


def cut_rows(batch: PaddedBatch, budget: int) -> list[list[int]]:
    """Row indices of micro-batches of at most `budget` tokens, in which rows of a group are together if they fit.

    Only together they share what they have in common. The budget counts every row as if it were alone. Rows of a unit
    (`areal.algorithm.packing.units`) are never separated: one that is too long has a micro-batch of its own.
    """
    lengths, groups = batch.lengths.tolist(), batch.groups.tolist()
    members: dict[int, list[list[int]]] = {}
    for unit in units(batch):
        members.setdefault(groups[unit[0]], []).append(unit)
    pieces = [
        [row for place in part for row in found[place]]
        for found in members.values()
        for part in micro_batches([sum(lengths[row] for row in unit) for unit in found], budget)
    ]
    parts = micro_batches([sum(lengths[row] for row in piece) for piece in pieces], budget)
    return sorted(sorted(row for index in part for row in pieces[index]) for part in parts)


def cuts_of(batch: PaddedBatch, divided: list[list[int]], budget: int) -> list[list[list[int]]]:
    """Row indices of each micro-batch of each rank, [] for a blank one; all have as many as the busiest rank."""
    cuts = []
    for rows in divided:
        part = batch if len(rows) == batch.lengths.shape[0] or not rows else select(batch, rows)
        cuts.append([[rows[index] for index in cut] for cut in cut_rows(part, budget)] if rows else [])
    most = max(map(len, cuts))
    return [cut + [[] for _ in range(most - len(cut))] for cut in cuts]


def tokens_of(batch: PaddedBatch, cuts: list[list[int]]) -> int:
    """Of the largest of some micro-batches."""
    return max((int(batch.lengths[rows].sum()) for rows in cuts if rows), default=0)
