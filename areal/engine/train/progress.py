"""Where the run of a training engine is: version, steps, and steps that were skipped in place of being taken.

It does not decide whether a step is skipped, and saves nothing by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.api import EngineError, NumericsError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import PaddedBatch

_logger = getLogger(__name__)


class Progress:
    """Counters of one engine."""

    def __init__(self, *, max_skipped_steps: int, whose: str = "") -> None:
        """whose: who skips, for messages, e.g. " on all ranks"."""
        self.version = 0
        self.num_steps = 0
        self.skipped_in_row = 0
        self.skipped_total = 0
        self.offending_rows: tuple[int, ...] = ()
        self._max_skipped_steps = max_skipped_steps
        self._whose = whose

    def set_version(self, version: int) -> None:
        """Raises EngineError when it would go back."""
        if version < self.version:
            raise EngineError(f"version {version} is older than the current {self.version}; versions only grow")
        self.version = version

    def record_step(self) -> None:
        """A step was taken."""
        self.num_steps += 1
        self.skipped_in_row = 0

    def record_skip(self, batch: PaddedBatch, rows: tuple[int, ...], *, loss: float, gradient_norm: float) -> None:
        """A step was skipped because of `rows`; () when no single row explains it. Raises NumericsError for too many
        in a row."""
        self.num_steps += 1
        self.offending_rows = rows
        self.skipped_in_row += 1
        self.skipped_total += 1
        groups = [int(batch.groups[row]) for row in rows]
        culprits = f"rows {list(rows)} of prompt groups {groups}" if rows else "no single row"
        message = (
            f"optimizer step {self.num_steps - 1} skipped{self._whose} ({self.skipped_in_row} in a row): loss {loss}, "
            f"gradient norm {gradient_norm}; caused by {culprits}"
        )
        _logger.warning("%s", message)
        if self.skipped_in_row > self._max_skipped_steps:
            raise NumericsError(
                f"{message}. max_skipped_steps is {self._max_skipped_steps}: lower lr, check the data of "
                f"those rows, or use dtype float32"
            )

    def counters(self) -> dict[str, int]:
        """What a checkpoint has of it."""
        return {
            "version": self.version,
            "num_steps": self.num_steps,
            "skipped_in_row": self.skipped_in_row,
            "skipped_total": self.skipped_total,
        }

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Inverse of `counters`; other entries are left alone."""
        self.version = counters["version"]
        self.num_steps = counters["num_steps"]
        self.skipped_in_row = counters["skipped_in_row"]
        self.skipped_total = counters["skipped_total"]


class ProgressReport:
    """What every training engine says of its progress."""

    _progress: Progress

    @property
    def version(self) -> int:
        """Number of weight versions published so far."""
        return self._progress.version

    @property
    def num_steps(self) -> int:
        """Calls of `train_batch` so far, skipped steps included; the learning rate is a function of it."""
        return self._progress.num_steps

    @property
    def num_skipped_steps(self) -> int:
        """Steps skipped for non-finite gradients since the run began."""
        return self._progress.skipped_total

    @property
    def offending_rows(self) -> tuple[int, ...]:
        """Rows of the last skipped batch whose own gradient or loss was not finite; empty when no single row explains
        it."""
        return self._progress.offending_rows

    def set_version(self, version: int) -> None:
        """Record the version that the next published weights have. Raises EngineError when it would go back."""
        self._progress.set_version(version)
