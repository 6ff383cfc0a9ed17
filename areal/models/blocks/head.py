"""What may stand between the final norm and the projection to the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from areal.models.blocks.activations import activation as find_activation

if TYPE_CHECKING:
    from torch import Tensor


class HeadTransform(nn.Module):
    """norm(activation(dense(x))), as in the heads of BERT (arXiv 1810.04805) and of the decoders made after it."""

    def __init__(self, hidden_size: int, *, activation: str, norm: nn.Module, bias: bool = False) -> None:
        """norm: over the hidden size; bias: of the matrix. ModelError for an unknown activation."""
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.activation = find_activation(activation)
        self.norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden_size] -> [..., hidden_size]."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed
