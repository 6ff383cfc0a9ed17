"""Linear layers of many experts in one kernel, without asking the device how many rows each expert has.

The rows are sorted by expert, so that those of one expert are neighbours. With counts on the host, a product per expert
is the obvious way, and on CPUs as fast as any; on an accelerator the host has to wait for the counts in every layer,
and then starts hundreds of small kernels. The grouped product takes the ends of the runs where they are, on the device.

Example: rows 0, 1 are for expert 0, none is for expert 1, row 2 is for expert 2.

    runs = RowRuns.of(torch.tensor([0, 0, 2]), num_experts=3)   # ends [2, 2, 3]
    grouped_linear(rows, weight, bias, runs)                    # [3, out]: weight[0], weight[0], weight[2]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT: Final = 16
"""Bytes that rows of all operands are a multiple of, or the kernel refuses them."""
_OLDEST: Final = (8, 0)
_TOO_NEW: Final = (10, 0)
"""Compute capability from which on gradients of experts with few rows were seen to be wrong."""


class RowRuns(NamedTuple):
    """Which rows belong to which expert, on the device of the rows."""

    experts: Tensor
    """int64 [R], ascending: expert of each row."""
    ends: Tensor
    """int32 [num_experts]: index after the last row of each expert, and of all before it."""

    @classmethod
    def of(cls, experts: Tensor, num_experts: int) -> Self:
        """experts: see the field."""
        # Not bincount, which reads the largest number from the device.
        numbers = torch.arange(num_experts, device=experts.device)
        return cls(experts, torch.searchsorted(experts, numbers, right=True, out_int32=True))


def grouped_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, runs: RowRuns) -> Tensor:
    """[R, in], [num_experts, out, in], [num_experts, out] -> [R, out]: each row by the layer of its expert. Matrices of
    experts without rows get a gradient of zeros."""
    used: Tensor = _ZerosWithoutRows.apply(weight, runs.ends)
    product = functional.grouped_mm(rows, used.transpose(1, 2), offs=runs.ends)
    return product if bias is None else product + bias.index_select(0, runs.experts)


def suits_grouping(rows: Tensor, *weights: Tensor | None) -> bool:
    """Whether there is a kernel, from torch 2.10 on, that takes rows [R, in] and these matrices [num_experts, out, in]:
    bfloat16, in multiples of 16 bytes, on CPUs and GPUs from Ampere to Hopper."""
    return (
        rows.dtype is torch.bfloat16
        and all(weight is None or (weight.dtype is torch.bfloat16 and _is_aligned(weight)) for weight in weights)
        and hasattr(functional, "grouped_mm")
        and (not rows.is_cuda or _OLDEST <= torch.cuda.get_device_capability(rows.device) < _TOO_NEW)
    )


class _ZerosWithoutRows(torch.autograd.Function):
    """Passes matrices [num_experts, out, in] on. On some GPUs the kernel leaves the gradients of experts without rows
    as the memory was, so they are replaced; a product with 0 would keep what is not finite."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(ends)
        return weight.view_as(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ends,) = ctx.saved_tensors
        has_rows = ends.diff(prepend=ends.new_zeros(1)) > 0
        return torch.where(has_rows[:, None, None], gradient, 0), None


def _is_aligned(weight: Tensor) -> bool:
    return all(size * weight.itemsize % _ALIGNMENT == 0 for size in weight.shape[1:])
