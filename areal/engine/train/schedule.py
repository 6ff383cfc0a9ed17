"""Learning rate as a pure function of the step: nothing to save, nothing to advance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from areal.api import ConfigError

if TYPE_CHECKING:
    from areal.engine.train.config import TrainEngineConfig


def learning_rate(config: TrainEngineConfig, step: int, total_steps: int | None) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

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
