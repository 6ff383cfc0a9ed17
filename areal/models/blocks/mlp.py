"""Position-wise feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases (arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
