"""Embeddings of the tokens that each layer gets for itself, beside the hidden states (Gemma 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import find_activation

if TYPE_CHECKING:
    from torch import Tensor


class LayerEmbeddings(nn.Module):
    """What every layer gets of each token: its entry in a table for all layers, and what is projected from the
    embedding that the first layer reads, normed per layer.

    Layer n gets rows n * size to (n + 1) * size of
    sum_multiplier * (multiplier * table[token] + norm(projection_multiplier * projection(embedded))).
    """

    def __init__(
        self,
        hidden_size: int,
        num_layers: int,
        *,
        vocab_size: int,
        size: int,
        multiplier: float,
        projection_multiplier: float,
        sum_multiplier: float,
        norm: nn.Module,
    ) -> None:
        """size: numbers that a layer gets per token. norm: over `size` numbers."""
        super().__init__()
        self.size = size
        # Filled later: to draw numbers on the meta device, torch would import torch._dynamo, a second of CPU.
        self.table = nn.Embedding.from_pretrained(torch.empty(vocab_size, num_layers * size), freeze=False)
        self.projection = Linear(hidden_size, num_layers * size, bias=False)
        self.norm = norm
        self.multiplier, self.projection_multiplier = multiplier, projection_multiplier
        self.sum_multiplier = sum_multiplier

    def forward(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """tokens [T], embedded [T, hidden_size] -> [T, num_layers, size]."""
        own = self.table(tokens)
        # In the dtype of the weights, as the multiplier of the embeddings themselves.
        own = own * torch.tensor(self.multiplier, dtype=own.dtype)
        projected = (self.projection(embedded) * self.projection_multiplier).unflatten(-1, (-1, self.size))
        found: Tensor = (self.norm(projected) + own.unflatten(-1, (-1, self.size))) * self.sum_multiplier
        return found


class LayerInput(nn.Module):
    """h + norm(projection(activation(gate(h)) * given)), where `given` is what `LayerEmbeddings` has for the layer."""

    def __init__(self, hidden_size: int, size: int, *, activation: str, norm: nn.Module) -> None:
        """norm: over hidden_size numbers."""
        super().__init__()
        self.gate = Linear(hidden_size, size, bias=False)
        self.projection = Linear(size, hidden_size, bias=False)
        self.norm = norm
        self.activation = find_activation(activation)

    def forward(self, hidden: Tensor, given: Tensor) -> Tensor:
        """hidden [T, hidden_size], given [T, size] -> [T, hidden_size]."""
        added: Tensor = self.norm(self.projection(self.activation(self.gate(hidden)) * given))
        return hidden + added
