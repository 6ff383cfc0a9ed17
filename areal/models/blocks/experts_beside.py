"""Experts beside a feed-forward layer, with norms of their own around both (Gemma 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from areal.models.blocks.moe import Experts, Router


class ExpertsBeside(nn.Module):
    """mlp_norm(fed) + output_norm(experts(input_norm(h))), where h is the residual stream that the feed-forward layer
    reads through a norm of the block, and `fed` what that gives. The router reads router_multiplier * router_norm(h),
    and the weight that it gives to an expert is multiplied by a number of this expert."""

    def __init__(
        self,
        *,
        router: Router,
        experts: Experts,
        router_norm: nn.Module,
        mlp_norm: nn.Module,
        input_norm: nn.Module,
        output_norm: nn.Module,
        router_multiplier: float = 1.0,
    ) -> None:
        """All norms are over hidden_size numbers."""
        super().__init__()
        self.router, self.experts, self.router_norm = router, experts, router_norm
        self.mlp_norm, self.input_norm, self.output_norm = mlp_norm, input_norm, output_norm
        self.router_multiplier = router_multiplier
        self.expert_scale = nn.Parameter(torch.empty(router.weight.shape[0]))

    def forward(self, hidden: Tensor, fed: Tensor) -> Tensor:
        """hidden [T, hidden_size], fed [T, hidden_size] -> [T, hidden_size]."""
        weights, experts = self.router(self.router_norm(hidden) * self.router_multiplier)
        mixed = self.experts(self.input_norm(hidden), weights * self.expert_scale[experts], experts)
        found: Tensor = self.mlp_norm(fed) + self.output_norm(mixed)
        return found
