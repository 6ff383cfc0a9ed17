"""Score each answer by the reference model: once per row, two numbers a pair, kept with the run's state.

With them the reference model is only needed before the run, or when a resumed run visits further rows; it takes no
memory while the run trains.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.preference import sequence_logp
from areal.api import DataError
from areal.trainer.rows import collate_pairs
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from areal.api import PairedBatch
    from areal.dataset.loading import ShuffledRows

_logger = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Score:
    chosen: float
    rejected: float
    checksum: int
    """Of the token ids the numbers are about."""


class ReferenceScores:
    """Log-probabilities of the answers of one dataset, by row."""

    def __init__(self, rows: ShuffledRows, *, name: str) -> None:
        """name: of the dataset, for messages."""
        self._rows = rows
        self._name = name
        self._scores: dict[int, _Score] = {}

    def missing(self, ordinals: Iterable[int]) -> list[int]:
        """Return an ordinal for each row that these visits need and that has no numbers yet, in order of the first
        visit.
        """
        first = {self._rows.row_index(ordinal): ordinal for ordinal in reversed(list(ordinals))}
        return sorted(ordinal for row, ordinal in first.items() if row not in self._scores)

    def compute(
        self,
        ordinals: Sequence[int],
        score: Callable[[PairedBatch], Tensor],
        *,
        batch_size: int,
        stop: Callable[[], bool],
    ) -> None:
        """Score the rows at these visits, `batch_size` pairs at a time, until done or `stop()`.

        score: the reference's log-probabilities of the answers' tokens.
        """
        for start in range(0, len(ordinals), batch_size):
            if stop():
                return
            part = ordinals[start : start + batch_size]
            rows = [self._rows.row(ordinal) for ordinal in part]
            batch = collate_pairs(rows, numbers=part)
            totals = sequence_logp(score(batch), batch.loss_mask).cpu().tolist()
            for position, (ordinal, row) in enumerate(zip(part, rows, strict=True)):
                chosen, rejected = totals[2 * position : 2 * position + 2]
                self._scores[self._rows.row_index(ordinal)] = _Score(chosen, rejected, _checksum(row))
        if ordinals:
            _logger.info("%s: %d pairs scored by the reference model", self._name, len(ordinals))

    def batch(self, ordinals: Sequence[int]) -> PairedBatch:
        """Return the pairs at these visits with the reference's numbers. Raises DataError for a row that is no longer
        the one that was scored.
        """
        rows = [self._rows.row(ordinal) for ordinal in ordinals]
        totals: list[float] = []
        for ordinal, row in zip(ordinals, rows, strict=True):
            score = self._scores[self._rows.row_index(ordinal)]
            if score.checksum != _checksum(row):
                raise DataError(
                    f"{self._name}: row {self._rows.row_index(ordinal)} is not the one that the reference model scored "
                    f"when the run began; restore the file, or start over in another output_dir"
                )
            totals += [score.chosen, score.rejected]
        return replace(collate_pairs(rows, numbers=ordinals), reference=torch.tensor(totals, dtype=torch.float64))

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors, rows ascending."""
        found = sorted(self._scores.items())
        return {
            "rows": torch.tensor([row for row, _ in found], dtype=torch.int64),
            "scores": torch.tensor([[item.chosen, item.rejected] for _, item in found], dtype=torch.float64),
            "checksums": torch.tensor([item.checksum for _, item in found], dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._scores = {
            row: _Score(pair[0], pair[1], checksum)
            for row, pair, checksum in zip(
                state["rows"].tolist(), state["scores"].tolist(), state["checksums"].tolist(), strict=True
            )
        }


def _checksum(row: Mapping[str, Any]) -> int:
    total = 0
    for name in ("chosen_ids", "chosen_loss_mask", "rejected_ids", "rejected_loss_mask"):
        total = zlib.crc32(array("q", row[name]).tobytes(), total)
    return total
