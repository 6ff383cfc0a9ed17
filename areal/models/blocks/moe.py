"""Mixture of experts: a router picks a few feed-forward experts per token and mixes their outputs.

Experts are stacked along the first dimension of three parameters, so that sharding over experts is a slice. The
auxiliary balancing loss of pre-training is not computed: it would fight the policy gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Router(nn.Module):
    """Softmax over all experts in float32, then the `top_k` largest, optionally rescaled to sum to 1."""

    def __init__(self, hidden_size: int, num_experts: int, top_k: int, *, normalize: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.top_k = top_k
        self.normalize = normalize

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[T, hidden_size] -> mixing weights [T, top_k] in the same dtype and expert numbers, int64 [T, top_k]."""
        probabilities = functional.linear(hidden, self.weight).softmax(-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.top_k, -1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(hidden.dtype), experts


class Experts(nn.Module):
    """`num_experts` SwiGLU layers in three stacked parameters."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_experts: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.up_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))

    def forward(self, hidden: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Weighted sum of each token's experts: [T, hidden_size], [T, top_k], [T, top_k] -> [T, hidden_size]."""
        top_k = experts.shape[1]
        # Sorting brings the tokens of one expert together; `order` indexes (token, choice) pairs.
        order = experts.flatten().argsort(stable=True)
        tokens = order // top_k
        counts = experts.flatten().bincount(minlength=self.gate_proj.shape[0]).tolist()
        # unbind: its backward stacks the experts' gradients, where that of indexing adds a full-size one per expert.
        stacked = zip(self.gate_proj.unbind(), self.up_proj.unbind(), self.down_proj.unbind(), strict=True)
        outputs = [
            functional.linear(functional.silu(functional.linear(rows, gate)) * functional.linear(rows, up), down)
            for rows, (gate, up, down) in zip(hidden[tokens].split(counts), stacked, strict=True)
            if rows.shape[0]
        ]
        mixed = torch.cat(outputs) * weights.flatten()[order, None]
        return torch.zeros_like(hidden).index_add(0, tokens, mixed)


class MixtureOfExperts(nn.Module):
    """Router and experts in the place of a feed-forward layer."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_experts: int, top_k: int, *, normalize: bool
    ) -> None:
        super().__init__()
        self.router = Router(hidden_size, num_experts, top_k, normalize=normalize)
        self.experts = Experts(hidden_size, intermediate_size, num_experts)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        return self.experts(hidden, *self.router(hidden))
