"""Sums of what the micro-batches of one step return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import LossOutput


class Totals:
    """Adds up what the micro-batches of one batch return; nothing leaves the device before the end."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._metrics: dict[str, list[Tensor]] = {}
        self._num_model_tokens = 0

    def add(self, output: LossOutput, num_model_tokens: int) -> None:
        self._losses.append(output.loss.detach())
        self._num_model_tokens += num_model_tokens
        for name, value in output.metrics.items():
            self._metrics.setdefault(name, []).append(value.detach())

    def clear(self) -> None:
        self._losses.clear()
        self._metrics.clear()
        self._num_model_tokens = 0

    def result(self) -> tuple[float, dict[str, float]]:
        metrics = {name: float(_combine(name, torch.stack(values))) for name, values in self._metrics.items()}
        metrics["model_tokens_count"] = float(self._num_model_tokens)
        return float(torch.stack(self._losses).sum()), metrics


def _combine(name: str, values: Tensor) -> Tensor:
    if name.endswith("_max"):
        return values.max()
    return values.min() if name.endswith("_min") else values.sum()
