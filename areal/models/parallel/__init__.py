"""Models split over processes: how many along each way of splitting, which parameter along which, and the splitting.

A family names the split of each of its matrices (`Shard`), a run says how many ranks there are along each way
(`ParallelDims`), and `shard_model` applies both. Everything here keeps the numbers of one process: what a rank computes
is exact, or a part of a sum. Losses, optimizers and checkpoints are `areal.engine.train`'s.

Importing this package does not import torch; calling its functions does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from areal.models.parallel.dims import ParallelDims
from areal.models.parallel.plan import ParallelPlan, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    Model = TypeVar("Model", bound=nn.Module)
else:
    Model = TypeVar("Model")

__all__ = ["ParallelDims", "ParallelPlan", "Shard", "shard_model"]


def shard_model(model: Model, plan: ParallelPlan | None, table: Mapping[str, Shard]) -> Model:
    """Apply `plan` to a decoder in place and return it; see `areal.models.parallel.apply.apply_plan`."""
    if plan is None or not plan.changes_anything:
        return model
    from areal.models.parallel import apply

    return apply.apply_plan(model, plan, table)
