"""What a sharding plan is, and the check that each family's `parallelize` makes. Sharding itself is not implemented."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from areal.api import ModelError

if TYPE_CHECKING:
    from torch import nn

    Model = TypeVar("Model", bound=nn.Module)
else:
    Model = TypeVar("Model")


class Shard(StrEnum):
    """How tensor parallelism splits a parameter over ranks; a parameter without an entry is replicated."""

    COLUMN = "column"
    """By output features: dimension 0 of a matrix and of its bias."""
    ROW = "row"
    """By input features: dimension 1 of a matrix; the outputs of all ranks are summed."""
    EXPERT_COLUMN = "expert_column"
    """As COLUMN, for experts stacked along dimension 0: dimension 1."""
    EXPERT_ROW = "expert_row"
    """As ROW, for stacked experts: dimension 2."""


@dataclass(frozen=True, kw_only=True)
class ParallelPlan:
    """Number of ranks along each way of splitting a model; 1 means not split."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1


def single_device(model: Model, plan: ParallelPlan | None) -> Model:
    """The model unchanged if the plan splits nothing; ModelError naming what it asks for otherwise."""
    asked = [f"{field.name}={getattr(plan, field.name)}" for field in fields(plan)] if plan is not None else []
    split = [entry for entry in asked if not entry.endswith("=1")]
    if split:
        raise ModelError(
            f"this model runs on one device; the plan asks for {', '.join(split)}, supported is 1 for each"
        )
    return model
