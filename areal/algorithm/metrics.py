"""Numbers for the log that add up: every value is a partial sum over the denominators of the whole step.

Rules (see `areal.api.LossOutput`): values of micro-batches are added; keys ending in "_max" combine by maximum, "_min"
by minimum. Keys ending in "_count" are plain counts (nothing divides them), so they add up too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from areal.algorithm.ratios import on_mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def masked_mean(values: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Sum over the mask divided by a count of the whole step, 0-dim, detached."""
    return on_mask(values.detach().to(torch.promote_types(values.dtype, torch.float32)), mask).sum() / max(
        denominator, 1.0
    )


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Largest value on the mask, at least 0 (so that an all-masked part never decides), 0-dim, detached."""
    chosen = on_mask(values.detach(), mask)
    return chosen.max().clamp(min=0.0) if chosen.numel() else chosen.sum()


def combine(parts: Iterable[Mapping[str, float | Tensor]]) -> dict[str, float]:
    """Metrics of the whole from the metrics of its parts."""
    whole: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            number = float(value)
            if name not in whole:
                whole[name] = number
            elif name.endswith("_max"):
                whole[name] = max(whole[name], number)
            elif name.endswith("_min"):
                whole[name] = min(whole[name], number)
            else:
                whole[name] += number
    return whole


def effective_sample_size(metrics: Mapping[str, float | Tensor]) -> float:
    """(mean w)^2 / mean w^2 of the combined metrics: 1 on-policy, towards 0 as few tokens carry all the weight; 0
    without tokens.
    """
    square = float(metrics["behave_weight_square"])
    return float(metrics["behave_weight"]) ** 2 / square if square > 0 else 0.0
