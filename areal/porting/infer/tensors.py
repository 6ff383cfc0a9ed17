"""Comparison of traced tensors: what counts as equal, and multiples of one tensor inside another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from areal.porting.records import ModuleCall, Trace


EQUAL = 2e-6
"""Relative difference that the same sum in another order of additions stays within."""
LOCAL = 2e-5
"""Relative difference within which one layer counts as reproduced. Tighter than the parity of logits, since errors of
layers add up."""


def rows(tensor: Tensor) -> Tensor:
    """[..., D] -> [N, D] in float64, so that fits are limited by the trace and not by the fit."""
    return tensor.detach().reshape(-1, tensor.shape[-1]).double()


def error(actual: Tensor, expected: Tensor) -> float:
    """Return max |actual - expected| relative to max(|expected|); infinite where the sizes differ. Values that are not
    finite never match."""
    if actual.numel() != expected.numel() or actual.shape[-1] != expected.shape[-1]:
        return math.inf
    difference = float((actual.detach().reshape(-1) - expected.detach().reshape(-1)).abs().max())
    size = float(expected.detach().abs().max())
    return difference / max(size, 1e-30) if math.isfinite(difference) else math.inf


def same(actual: Tensor, expected: Tensor, tolerance: float = EQUAL) -> bool:
    """Return whether both hold the same values, whatever the leading dimensions."""
    return error(actual, expected) <= tolerance


def combination(target: Tensor, parts: tuple[Tensor, ...]) -> tuple[tuple[float, ...], float]:
    """Return least-squares factors of `parts` in `target`, and the relative error of the combination."""
    matrix = torch.stack([rows(part).reshape(-1) for part in parts], dim=1)
    goal = rows(target).reshape(-1)
    # Normal equations: at most three columns, and float64 leaves enough digits.
    factors = torch.linalg.lstsq(matrix.T @ matrix, (matrix.T @ goal)[:, None], driver="gelsd").solution[:, 0]
    return tuple(float(factor) for factor in factors), error((matrix @ factors)[None], goal[None])


def snapped(value: float, candidates: Iterable[float], *, tolerance: float = 1e-5) -> float:
    """Return the candidate that `value` measures, else `value` rounded to the digits that a float32 trace supports."""
    near = [candidate for candidate in candidates if abs(value - candidate) <= tolerance * max(abs(candidate), 1e-12)]
    if near:
        return min(near, key=lambda candidate: abs(value - candidate))
    return float(f"{value:.7g}")


# ------------------------------------------------------------------------------------------------------------- matrices

# The linear layers that ran inside a module: known by what they computed, not by their class.


MATRIX_DIMENSIONS = 2


@dataclass(frozen=True)
class MatrixCall:
    """One call of a module that computed `input @ weight.T + bias`."""

    name: str
    order: int
    input: Tensor
    output: Tensor
    weight: Tensor
    """[out, in], whatever the layout in memory."""
    bias: Tensor | None
    transposed: bool
    """Whether the module holds it as [in, out] (GPT-2's Conv1D)."""


def inside(name: str, parent: str) -> bool:
    """Return whether module `name` is `parent` or lies below it."""
    return name == parent or not parent or name.startswith(parent + ".")


def matrix_call(module: nn.Module, call: ModuleCall) -> MatrixCall | None:
    """Return the call as a product with the module's only matrix; None if that is not what it computed."""
    own = dict(module.named_parameters(recurse=False))
    matrices = [value.detach() for value in own.values() if value.ndim == MATRIX_DIMENSIONS]
    vectors = [value.detach() for value in own.values() if value.ndim == 1]
    if len(matrices) != 1 or len(vectors) > 1 or not call.input.is_floating_point() or call.input.ndim == 0:
        return None
    bias = vectors[0] if vectors else None
    sizes = (call.output.shape[-1], call.input.shape[-1])
    for weight, transposed in ((matrices[0], False), (matrices[0].T, True)):
        if tuple(weight.shape) != sizes or (bias is not None and bias.shape[0] != sizes[0]):
            continue
        if same(torch.nn.functional.linear(call.input, weight, bias), call.output, 1e-5):
            return MatrixCall(call.name, call.order, call.input, call.output, weight, bias, transposed)
    return None


def matrix_calls(model: nn.Module, trace: Trace, within: str, *, outside: tuple[str, ...] = ()) -> list[MatrixCall]:
    """Return the linear layers that ran below module `within` and not below one of `outside`, in calling order."""
    found = []
    for name, calls in trace.calls.items():
        if not inside(name, within) or any(inside(name, other) for other in outside):
            continue
        module = model.get_submodule(name)
        found += [matrix for call in calls if (matrix := matrix_call(module, call)) is not None]
    return sorted(found, key=lambda matrix: matrix.order)
