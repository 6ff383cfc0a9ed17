"""Counts versions, steps and skipped steps of a training engine, and gives the learning rate of a step.

The rate is a pure function of the step: nothing to save, nothing to advance. Whether a step is skipped is the engine's
decision.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from areal.api import ConfigError, EngineError, NumericsError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import PaddedBatch
    from areal.engine.train.config import TrainEngineConfig

_logger = getLogger(__name__)


class Progress:
    """Counters of one engine."""

    def __init__(self, *, max_skipped_steps: int) -> None:
        self.version = 0
        self.num_steps = 0
        self.skipped_in_row = 0
        self.skipped_total = 0
        self.offending_rows: tuple[int, ...] = ()
        self._max_skipped_steps = max_skipped_steps

    def set_version(self, version: int) -> None:
        """Record the version of the next published weights. Raises EngineError when it would go back."""
        if version < self.version:
            raise EngineError(f"version {version} is older than the current {self.version}; versions only grow")
        self.version = version

    def record_step(self) -> None:
        """Count a step that was taken."""
        self.num_steps += 1
        self.skipped_in_row = 0

    def record_skip(self, batch: PaddedBatch, rows: tuple[int, ...], *, loss: float, gradient_norm: float) -> None:
        """Count a step that was skipped because of `rows`; () when no single row explains it. Raises NumericsError for
        too many in a row."""
        self.num_steps += 1
        self.offending_rows = rows
        self.skipped_in_row += 1
        self.skipped_total += 1
        groups = [int(batch.groups[row]) for row in rows]
        culprits = f"rows {list(rows)} of prompt groups {groups}" if rows else "no single row"
        message = (
            f"optimizer step {self.num_steps - 1} skipped ({self.skipped_in_row} in a row): loss {loss}, "
            f"gradient norm {gradient_norm}; caused by {culprits}"
        )
        _logger.warning("%s", message)
        if self.skipped_in_row > self._max_skipped_steps:
            raise NumericsError(
                f"{message}. max_skipped_steps is {self._max_skipped_steps}: lower lr, check the data of "
                f"those rows, or use dtype float32"
            )

    def counters(self) -> dict[str, int]:
        """Return what a checkpoint has of it."""
        return {
            "version": self.version,
            "num_steps": self.num_steps,
            "skipped_in_row": self.skipped_in_row,
            "skipped_total": self.skipped_total,
        }

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Take over `counters`; other entries are ignored."""
        self.version = counters["version"]
        self.num_steps = counters["num_steps"]
        self.skipped_in_row = counters["skipped_in_row"]
        self.skipped_total = counters["skipped_total"]


def learning_rate(config: TrainEngineConfig, step: int, total_steps: int | None) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    Warm-up is linear from 0 (excluded, a step of rate 0 would be wasted) and reaches `lr` at its last step. Cosine and
    linear then fall to `min_lr_ratio * lr`, which they would reach at step `total_steps`, one after the last.

    Raises ConfigError when the schedule needs total_steps and it is None.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.lr_schedule == "constant":
        return config.lr
    if total_steps is None:
        raise ConfigError(
            f"lr_schedule {config.lr_schedule!r} needs the number of optimizer steps; set total_train_steps, "
            f'or use lr_schedule "constant"'
        )
    span = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    remaining = 1.0 - progress if config.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * remaining)
