"""What the micro-batches of a step add up to, on one rank and over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

    from areal.api import LossOutput

MODEL_TOKENS: Final = "model_tokens_count"


@dataclass
class Totals:
    """Sums of losses and metrics, which are divided by the denominators of the whole step already."""

    loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    num_micro_batches: int = 0
    """Blank ones not counted."""
    num_predicted: int = 0
    """Tokens that the loss is about."""

    def add(self, output: LossOutput, *, num_model_tokens: int, num_predicted: int) -> None:
        """A micro-batch of this rank."""
        metrics = {name: float(value) for name, value in output.metrics.items()}
        metrics[MODEL_TOKENS] = float(num_model_tokens)
        self._merge(Totals(float(output.loss.detach()), metrics, 1, num_predicted))

    def clear(self) -> None:
        """Forget all micro-batches."""
        self.loss, self.num_micro_batches, self.num_predicted = 0.0, 0, 0
        self.metrics.clear()

    def over(self, group: ProcessGroup) -> Totals:
        """Totals of all ranks of a group that have rows of their own, added in the order of the ranks."""
        found: list[Totals | None] = [None] * group.size()
        dist.all_gather_object(found, self, group=group)
        merged = Totals()
        for totals in found:
            assert totals is not None
            merged._merge(totals)
        return merged

    def _merge(self, other: Totals) -> None:
        self.loss += other.loss
        self.num_micro_batches += other.num_micro_batches
        self.num_predicted += other.num_predicted
        for name, value in other.metrics.items():
            self.metrics[name] = combination(name)((self.metrics[name], value)) if name in self.metrics else value


def combination(name: str) -> Callable[[tuple[float, float]], float]:
    """How values of a metric combine; see `LossOutput.metrics`."""
    if name.endswith("_max"):
        return max
    return min if name.endswith("_min") else sum
