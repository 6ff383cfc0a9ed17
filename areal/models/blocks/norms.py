"""Normalisation layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension, then scale: x / sqrt(mean(x^2) + eps) * weight.

    Source: arXiv 1910.07467. Statistics are float32, or float64 for float64; a narrower input is rounded back *before*
    the scaling, as the reference implementations do, so that bfloat16 logits agree with theirs.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        if inputs.dtype in (torch.float32, torch.float64):
            return functional.rms_norm(inputs, self.weight.shape, self.weight, self.eps)
        normed = functional.rms_norm(inputs.float(), self.weight.shape, None, self.eps)
        return self.weight * normed.to(inputs.dtype)
