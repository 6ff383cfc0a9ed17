"""Packed tokens as rows of equal length, and the recurrence of a record over them."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.utils.rnn import pad_sequence

from areal.api import OF_HEADS, DecayedSum, DeltaRule, Diagonal, ModelError, SelectiveScan
from areal.models.blocks.recurrences.chunks import Borders
from areal.models.blocks.recurrences.decayed_sum import decayed_sum_rows, decayed_sum_step
from areal.models.blocks.recurrences.delta import delta_rule_rows, delta_rule_step
from areal.models.blocks.recurrences.diagonal import diagonal_rows, diagonal_step
from areal.models.blocks.recurrences.selective import selective_rows, selective_step
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from areal.api import Recurrence

_FORMS: Final[dict[type, tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor]]]]] = {
    DecayedSum: (decayed_sum_rows, decayed_sum_step),
    DeltaRule: (delta_rule_rows, delta_rule_step),
    Diagonal: (diagonal_rows, diagonal_step),
    SelectiveScan: (selective_rows, selective_step),
}
"""Of each record: how rows of tokens are computed, and how one more token."""
MAX_LANE_PADDING: Final = 1.25
"""Documents are put into more and shorter rows, which are computed side by side, up to this ratio of cells to
tokens."""


class PaddedRows:
    """Rows of tokens that are laid end to end. Rows are padded on the right with zeros, which change no state."""

    def __init__(self, lengths: Sequence[int], borders: Borders) -> None:
        """lengths: of the rows, at least 1 each. borders: of documents in them."""
        self.lengths, self.borders = list(lengths), borders
        self._are_equal = min(self.lengths) == max(self.lengths)

    def scan(self, recurrence: Recurrence, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs [T, H, d_v] and the states [R, *state] after the last token of every row.

        initial: what the first tokens of rows find; None for zeros. Raises ModelError for an unknown record.
        """
        outputs, final = _form_of(recurrence)[0](mapped(recurrence, self.pad), self.borders, initial)
        return self.join(outputs), final

    def pad(self, packed: Tensor) -> Tensor:
        """[T, ...] -> [R, L, ...]."""
        if self._are_equal:
            return packed.unflatten(0, (len(self.lengths), -1))
        return pad_sequence(packed.split(self.lengths), batch_first=True)

    def join(self, rows: Tensor) -> Tensor:
        """[R, L, ...] -> [T, ...]."""
        if self._are_equal:
            return rows.flatten(0, 1)
        # Unbound and not indexed: the gradient of an index is a tensor of zeros of the size of all rows.
        return torch.cat([row[:length] for row, length in zip(rows.unbind(), self.lengths, strict=True)])


def state_shape(recurrence: Recurrence) -> tuple[int, ...]:
    """Return the shape of one state: [H, d_k, d_v], or [H, D], or [H, N]."""
    if isinstance(recurrence, SelectiveScan):
        return (recurrence.rates.shape[0], recurrence.rates.shape[1])
    heads, size = recurrence.value.shape[1:]
    return (heads, size) if isinstance(recurrence, Diagonal) else (heads, recurrence.key.shape[2], size)


def scan_step(recurrence: Recurrence, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, H, d_v] of one more token per row, and the states [R, *state] after it."""
    return _form_of(recurrence)[1](recurrence, state)


def mapped(recurrence: Recurrence, change: Callable[[Tensor], Tensor]) -> Recurrence:
    """Return the record with each of its tensors of tokens changed."""
    tensors = {
        field.name: getattr(recurrence, field.name) for field in fields(recurrence) if field.metadata != OF_HEADS
    }
    changed: Any = {name: change(value) for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    return replace(recurrence, **changed)


def lanes(lengths: Sequence[int], device: torch.device) -> PaddedRows:
    """Return rows of whole documents of these lengths, in their order; empty ones are allowed, but not only those.

    A row is computed chunk after chunk and all rows side by side, so that as many rows are made as waste little.
    """
    documents = [length for length in lengths if length]
    total, size = sum(documents), max(documents)
    rows = _filled(documents, size)
    while len(rows) * max(sum(row) for row in rows) > MAX_LANE_PADDING * total:
        size *= 2
        rows = _filled(documents, size)
    sums = [sum(row) for row in rows]
    begins = torch.zeros(len(rows), max(sums), dtype=torch.bool)
    for number, row in enumerate(rows):
        begins[number, list(accumulate(row[:-1], initial=0))] = True
    return PaddedRows(sums, Borders(upload(begins, device)))


def _filled(documents: Sequence[int], size: int) -> list[list[int]]:
    """Return the documents in rows of at most `size` tokens; none is longer than that."""
    rows: list[list[int]] = [[]]
    room = size
    for length in documents:
        if length > room:
            rows.append([])
            room = size
        rows[-1].append(length)
        room -= length
    return rows


def _form_of(recurrence: object) -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor]]]:
    form = _FORMS.get(type(recurrence))
    if form is None:
        known = ", ".join(sorted(record.__name__ for record in _FORMS))
        raise ModelError(f"no recurrence for {type(recurrence).__name__}, expected one of {known}")
    return form
