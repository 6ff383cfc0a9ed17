"""Normalisation layers over the last dimension, with one weight per element or per head and element."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from areal.api import ModelError


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension, then scale: x / sqrt(mean(x^2) + eps) * weight.

    Source: arXiv 1910.07467. Statistics are float32, or float64 for float64; a narrower input is rounded back *before*
    the scaling, as the reference implementations do, so that bfloat16 logits agree with theirs. With an `offset` the
    factor is offset + weight, and rounding comes after it, as in Gemma.
    """

    def __init__(self, shape: int | tuple[int, ...], eps: float, *, offset: float = 0.0, weight: bool = True) -> None:
        """shape: of the weight; (heads, dim) gives each head its own. weight: False for a norm without parameters."""
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else shape
        self.weight = nn.Parameter(torch.ones(self.shape)) if weight else None
        self.eps = eps
        self.offset = offset

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., *shape] -> the same."""
        is_wide = inputs.dtype in (torch.float32, torch.float64)
        size = self.shape[-1:]
        if is_wide and len(self.shape) == 1 and not self.offset:
            return functional.rms_norm(inputs, size, self.weight, self.eps)
        normed = functional.rms_norm(inputs if is_wide else inputs.float(), size, None, self.eps)
        if self.weight is None:
            return normed.to(inputs.dtype)
        if not self.offset:
            return self.weight * normed.to(inputs.dtype)
        return (normed * (self.offset + self.weight.to(normed.dtype))).to(inputs.dtype)


class LayerNorm(nn.Module):
    """Subtract the mean over the last dimension, divide by the standard deviation, scale and shift (arXiv 1607.06450).

    Statistics are float32 for narrower inputs, or float64 for float64. With an `offset` the factor is offset + weight,
    as in Nemotron.
    """

    def __init__(
        self, shape: int | tuple[int, ...], eps: float, *, offset: float = 0.0, weight: bool = True, bias: bool = True
    ) -> None:
        """shape: of weight and bias; (heads, dim) gives each head its own."""
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else shape
        self.weight = nn.Parameter(torch.ones(self.shape)) if weight else None
        self.bias = nn.Parameter(torch.zeros(self.shape)) if bias else None
        self.eps = eps
        self.offset = offset

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., *shape] -> the same."""
        weight = self.weight + self.offset if self.weight is not None and self.offset else self.weight
        if len(self.shape) == 1:
            return functional.layer_norm(inputs, self.shape, weight, self.bias, self.eps)
        wide = inputs if inputs.dtype == torch.float64 else inputs.float()
        normed = functional.layer_norm(wide, self.shape[-1:], None, None, self.eps)
        if weight is not None:
            normed = normed * weight.to(normed.dtype)
        if self.bias is not None:
            normed = normed + self.bias.to(normed.dtype)
        return normed.to(inputs.dtype)


class GatedNorm(nn.Module):
    """RMS norm of what a recurrence gives, and a gate on it; all of it at least in float32.

    Norm first: norm(x) * weight * activation(gate), as delta rules have it; else norm(x * activation(gate)) * weight,
    as in Mamba-2. Statistics are those of each group of consecutive elements. Parameter: weight [size].
    """

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        norm_first: bool,
        groups: int = 1,
        activation: Literal["silu", "sigmoid"] = "silu",
    ) -> None:
        super().__init__()
        if size % groups:
            raise ModelError(f"{size} elements are not {groups} equal groups to norm; expected a divisor of {size}")
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.norm_first = eps, norm_first
        self.group_size = size // groups
        self._activation = functional.silu if activation == "silu" else torch.sigmoid

    def forward(self, inputs: Tensor, gate: Tensor) -> Tensor:
        """[..., size] at least in float32, and a gate of the same shape -> [..., size] in the dtype of the gate."""
        factor = self._activation(gate.to(inputs.dtype))
        normed = self._norm(inputs) * factor if self.norm_first else self._norm(inputs * factor)
        return normed.to(gate.dtype)

    def _norm(self, inputs: Tensor) -> Tensor:
        # -1: under tensor parallelism a rank holds only some of the groups.
        grouped = functional.rms_norm(inputs.unflatten(-1, (-1, self.group_size)), (self.group_size,), None, self.eps)
        return grouped.flatten(-2) * self.weight.to(inputs.dtype)
