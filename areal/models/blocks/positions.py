"""Absolute positions, which families without rotary positions add to the token embeddings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from areal.api import ModelError

if TYPE_CHECKING:
    from torch import Tensor


class LearnedPositions(nn.Embedding):
    """A learned vector per position. Parameter: weight [num_positions + offset, hidden_size].

    offset: row of position 0; OPT keeps the rows before it for padding.
    """

    def __init__(self, num_positions: int, hidden_size: int, *, offset: int = 0) -> None:
        super().__init__(num_positions + offset, hidden_size)
        self.num_positions, self.offset = num_positions, offset

    def forward(self, positions: Tensor) -> Tensor:
        """int64 [T] -> [T, hidden_size] in the dtype of the weight. ModelError for positions beyond the last."""
        require_within(positions, self.num_positions)
        return super().forward(positions + self.offset)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of positions at frequencies from 1 down to 1/10000, in a geometric series (arXiv 1706.03762).

    offset: added to every position. interleaved: sine and cosine of a frequency stand side by side, as in the paper;
    otherwise all sines come before all cosines. endpoint: the last frequency is 1/10000 itself, as in tensor2tensor;
    otherwise it is one step before that, as in the paper. No parameters.
    """

    def __init__(
        self,
        num_positions: int,
        hidden_size: int,
        *,
        offset: int = 0,
        interleaved: bool = False,
        endpoint: bool = False,
    ) -> None:
        super().__init__()
        if hidden_size % 2:
            raise ModelError(
                f"sinusoidal positions pair dimensions; hidden_size is {hidden_size}, expected an even one"
            )
        self.num_positions, self.offset, self.interleaved = num_positions, offset, interleaved
        self._num_frequencies, self._endpoint = hidden_size // 2, endpoint

    def forward(self, positions: Tensor) -> Tensor:
        """int64 [T] -> float32 [T, hidden_size]. ModelError for positions beyond the last."""
        require_within(positions, self.num_positions)
        angles = (positions + self.offset).to(torch.float32)[:, None] * self._frequencies(positions.device)
        parts = angles.sin(), angles.cos()
        return torch.stack(parts, -1).flatten(1) if self.interleaved else torch.cat(parts, -1)

    def _frequencies(self, device: torch.device) -> Tensor:
        """Return float32 [hidden_size / 2], rounded as in the code that models with each series were trained with."""
        index = torch.arange(self._num_frequencies, dtype=torch.float32, device=device)
        if self._endpoint:
            return torch.exp(index * -(math.log(10000.0) / (self._num_frequencies - 1)))
        return 1 / torch.pow(10000, 2 * index / (2 * self._num_frequencies))


def require_within(positions: Tensor, num_positions: int) -> None:
    """Raise ModelError for a position that the model has no row for."""
    # On the meta device nothing is computed, so that there is nothing to look at.
    if positions.numel() and not positions.is_meta and int(positions.max()) >= num_positions:
        raise ModelError(
            f"position {int(positions.max())} is beyond the model's {num_positions} positions; shorten the sequence"
        )
