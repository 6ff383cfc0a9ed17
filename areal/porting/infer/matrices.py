"""The linear layers that ran inside a module: known by what they computed, not by their class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from areal.porting.infer.tensors import same

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.porting.records import ModuleCall, Trace

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
    """Whether module `name` is `parent` or lies below it."""
    return name == parent or not parent or name.startswith(parent + ".")


def matrix_call(module: nn.Module, call: ModuleCall) -> MatrixCall | None:
    """The call as a product with the module's only matrix; None if that is not what it computed."""
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
    """The linear layers that ran below module `within` and not below one of `outside`, in calling order."""
    found = []
    for name, calls in trace.calls.items():
        if not inside(name, within) or any(inside(name, other) for other in outside):
            continue
        module = model.get_submodule(name)
        found += [matrix for call in calls if (matrix := matrix_call(module, call)) is not None]
    return sorted(found, key=lambda matrix: matrix.order)
