"""Differential attention (arXiv 2410.05258): what half of the heads attend to, less a part of what the others do."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class DifferentialHeads(nn.Module):
    """Head h and head h + num_heads / 2 are a pair. Both attend to the values of their pair of key-value heads, and
    the second is taken from the first, times a learned factor; the difference is normed, without a weight.

    Parameters: lambda_q1, lambda_k1, lambda_q2, lambda_k2 [head_dim]. The factor is exp(lambda_q1 lambda_k1) -
    exp(lambda_q2 lambda_k2) + 0.8 - 0.6 exp(-0.3 layer), and the normed difference is multiplied by 1 less the part of
    it that depends on the layer alone.
    """

    def __init__(self, layer: int, head_dim: int, eps: float) -> None:
        """layer: its number in the whole model; eps: of the norm."""
        super().__init__()
        self.start, self.eps = first_factor(layer), eps
        self.lambda_q1 = nn.Parameter(torch.empty(head_dim))
        self.lambda_k1 = nn.Parameter(torch.empty(head_dim))
        self.lambda_q2 = nn.Parameter(torch.empty(head_dim))
        self.lambda_k2 = nn.Parameter(torch.empty(head_dim))

    def widen(self, value: Tensor) -> Tensor:
        """[T, num_kv_heads, D] -> [T, num_kv_heads, 2 D]: those of both heads of a pair, for each of them."""
        pairs = torch.cat(value.chunk(2, 1), -1)
        return torch.cat((pairs, pairs), 1)

    def forward(self, attended: Tensor) -> Tensor:
        """[T, num_heads, 2 D] -> [T, num_heads / 2, 2 D]."""
        wide = torch.promote_types(attended.dtype, torch.float32)
        one, other = ((q.to(wide) * k.to(wide)).sum().exp() for q, k in self._products())
        first, second = attended.to(wide).chunk(2, 1)
        difference = first - (one - other + self.start) * second
        normed = difference * torch.rsqrt(difference.square().mean(-1, keepdim=True) + self.eps)
        return ((1 - self.start) * normed).to(attended.dtype)

    def _products(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2)


def first_factor(layer: int) -> float:
    """Return the part of the factor that depends on the layer alone."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)
