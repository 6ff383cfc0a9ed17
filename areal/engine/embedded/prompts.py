"""Prompts that several rows have in common, kept once, in a cache of their own.

A group is the rows of one prompt. All of its context but the last token is in a slot of `SharedPrompts.cache`; that
token, and what a row samples, is in the row's own slot of the batch's cache. So a prompt is neither copied to the rows
nor read once for each of them: the queries of a group attend to it together.

    context "a b c d", two rows     prompts: [a b c]     own: [d x y], [d z]

Groups fill the slots 0 .. n - 1, as rows do. The last token is left out so that every row has something of its own, and
so that a row that joins later finds its next token by computing that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from areal.engine.embedded.cache import KVCache

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NO_GROUP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRows:
    """Decode rows by group, laid out as `groups` times `members` places."""

    cache: KVCache
    groups: int
    members: int
    """Rows of the largest group."""
    row_of_place: Tensor
    """int64 [groups * members]; 0 where a group has fewer."""
    rows: Tensor | None
    """int64, rows that are in a group; None for all."""
    place_of_row: Tensor
    """int64, place of each of these."""
    indices: dict[int, tuple[Tensor, Tensor]]
    """By number of key heads, what `heads` returned."""
    lengths: Tensor
    """int64 [groups], tokens of each prompt."""
    longest: int
    before: Tensor
    """int64 [N], tokens of its prompt that each row does not have itself."""

    def heads(self, number: int) -> tuple[Tensor, Tensor]:
        """Take each row with its `number` key heads apart, and join them to [groups, heads, members].

        Returns int64 [groups * number * members] into [rows * number], and back for the rows in a group.
        """
        if number not in self.indices:
            head = torch.arange(number)
            there = self.row_of_place.view(self.groups, 1, -1) * number + head[:, None]
            group, member = self.place_of_row // self.members, self.place_of_row % self.members
            back = (group[:, None] * number + head) * self.members + member[:, None]
            self.indices[number] = there.flatten(), back.flatten()
        return self.indices[number]


class SharedPrompts:
    """The groups and their cache. Members are counted by the table of rows, which has the group of each."""

    def __init__(self, *, max_slots: int, max_length: int) -> None:
        self.cache = KVCache(max_slots=max_slots, max_length=max_length)
        self._lengths: list[int] = []
        self._last: tuple[tuple[bytes, ...], GroupedRows] | None = None

    def open(self, length: int) -> int:
        """Return the slot for a new prompt, of which `length` tokens will be kept; `reserve` before they are."""
        self._lengths.append(length)
        return len(self._lengths) - 1

    def reserve(self) -> None:
        """Make room for all prompts."""
        self.cache.reserve(len(self._lengths), max(self._lengths, default=0))

    def close_unused(self, group_of_row: NDArray[np.int64]) -> None:
        """Free groups that no row is in; the last ones move into the holes. Changes group_of_row accordingly."""
        used = np.bincount(group_of_row[group_of_row >= 0], minlength=len(self._lengths)) > 0
        for slot in reversed(np.flatnonzero(~used).tolist()):
            last = len(self._lengths) - 1
            if slot < last:
                self.cache.copy_rows(torch.tensor([last]), torch.tensor([slot]), self._lengths[last])
                self._lengths[slot] = self._lengths[last]
                group_of_row[group_of_row == last] = slot
            self._lengths.pop()
            # Broken weights may have left what masks do not hide.
            self.cache.clear_rows(torch.tensor([last]))

    def clear(self) -> None:
        """Drop all groups and their memory."""
        self._last = None
        self._lengths.clear()
        self.cache.clear()

    def grouped(self, group_of_row: NDArray[np.int64], before: NDArray[np.int64]) -> GroupedRows | None:
        """Lay out rows by group; None when no row is in one. Both int64 [N], before: as in the result."""
        # Most steps are between the same rows as the one before.
        key = (group_of_row.tobytes(), before.tobytes(), np.array(self._lengths).tobytes())
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        rows = np.flatnonzero(group_of_row >= 0)
        if not len(rows):
            return None
        groups = group_of_row[rows]
        order = np.argsort(groups, kind="stable")
        counts = np.bincount(groups, minlength=len(self._lengths))
        members = int(counts.max())
        number = np.empty_like(groups)
        number[order] = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
        place_of_row = groups * members + number
        row_of_place = np.zeros(len(counts) * members, dtype=np.int64)
        row_of_place[place_of_row] = rows
        found = GroupedRows(
            cache=self.cache,
            groups=len(counts),
            members=members,
            row_of_place=torch.from_numpy(row_of_place),
            rows=None if len(rows) == len(group_of_row) else torch.from_numpy(rows),
            place_of_row=torch.from_numpy(place_of_row),
            lengths=torch.tensor(self._lengths),
            longest=max(self._lengths),
            before=torch.from_numpy(before.copy()),
            indices={},
        )
        self._last = key, found
        return found
