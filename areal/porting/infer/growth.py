"""Queries that grow with their position: by which factor, and every how many positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from areal.porting.infer.scores import numbers_of, snap
from areal.porting.records import Evidence, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.porting.infer.view import View

GROWTH_TOLERANCE = 1e-5
"""Of the factor on queries, which is 1 at the first position."""


def explain_growth(growth: Tensor, view: View) -> tuple[float, int, Evidence]:
    """The numbers a and n of 1 + a log(1 + floor(position / n)) that give the factors [T]. Raises UnsupportedError."""
    length = int(((growth - 1).abs() > GROWTH_TOLERANCE).nonzero()[0, 0])
    steps = torch.arange(len(growth), dtype=torch.float64).div(length, rounding_mode="floor")
    shape = torch.log(1 + steps)
    measured = float((shape * (growth - 1)).sum() / shape.square().sum())
    hints = numbers_of(view.context.model.get_submodule(view.name), view.context.config)
    factor = math.copysign(snap(abs(measured), hints), measured)
    error = float((1 + factor * shape - growth).abs().max())
    if error > GROWTH_TOLERANCE:
        raise UnsupportedError(
            "queries scaled by position",
            where=view.name,
            detail=f"the first {length} positions are alike; 1 + {factor:.4g} log(1 + floor(position / {length})) is "
            f"off by {error:.1e} from the factors, tolerance {GROWTH_TOLERANCE:.0e}",
        )
    return (
        factor,
        length,
        Evidence(
            feature="attention.query_growth",
            value=f"1 + {factor:.6g} log(1 + floor(position / {length}))",
            source="probe",
            detail=f"length of rotated queries of {view.name}; agrees to {error:.1e}",
            margin=float((growth - 1).abs().max()) / GROWTH_TOLERANCE,
        ),
    )
