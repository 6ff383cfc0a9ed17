"""Comparison of traced tensors: what counts as equal, and multiples of one tensor inside another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

EQUAL = 2e-6
"""Relative difference that the same sum in another order of additions stays within."""
LOCAL = 2e-5
"""Relative difference within which one layer counts as reproduced. Tighter than the parity of logits, since errors of
layers add up."""


def rows(tensor: Tensor) -> Tensor:
    """[..., D] -> [N, D] in float64, so that fits are limited by the trace and not by the fit."""
    return tensor.detach().reshape(-1, tensor.shape[-1]).double()


def error(actual: Tensor, expected: Tensor) -> float:
    """max |actual - expected| relative to max(|expected|); infinite where the sizes differ. Values that are not finite
    never match."""
    if actual.numel() != expected.numel() or actual.shape[-1] != expected.shape[-1]:
        return math.inf
    difference = float((actual.detach().reshape(-1) - expected.detach().reshape(-1)).abs().max())
    size = float(expected.detach().abs().max())
    return difference / max(size, 1e-30) if math.isfinite(difference) else math.inf


def same(actual: Tensor, expected: Tensor, tolerance: float = EQUAL) -> bool:
    """Whether both hold the same values, whatever the leading dimensions."""
    return error(actual, expected) <= tolerance


def combination(target: Tensor, parts: tuple[Tensor, ...]) -> tuple[tuple[float, ...], float]:
    """Least-squares factors of `parts` in `target`, and the relative error of the combination."""
    matrix = torch.stack([rows(part).reshape(-1) for part in parts], dim=1)
    goal = rows(target).reshape(-1)
    # Normal equations: at most three columns, and float64 leaves enough digits.
    factors = torch.linalg.lstsq(matrix.T @ matrix, (matrix.T @ goal)[:, None], driver="gelsd").solution[:, 0]
    return tuple(float(factor) for factor in factors), error((matrix @ factors)[None], goal[None])


def snapped(value: float, candidates: Iterable[float], *, tolerance: float = 1e-5) -> float:
    """The candidate that `value` measures, else `value` rounded to the digits that a float32 trace supports."""
    near = [candidate for candidate in candidates if abs(value - candidate) <= tolerance * max(abs(candidate), 1e-12)]
    if near:
        return min(near, key=lambda candidate: abs(value - candidate))
    return float(f"{value:.7g}")
