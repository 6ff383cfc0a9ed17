"""The backends of training: attention, what indexers choose, and states.

Inside each sequence, or behind beginnings that sequences share.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.recurrences.rows import lanes
from areal.models.blocks.shared_prefix import SharedPrefixAttention
from areal.models.blocks.shared_states import SharedPrefixStates
from areal.models.blocks.short_convolution import rounded, shifted_products
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from areal.api import Recurrence, StateBackend
    from areal.models.blocks.recurrences.rows import PaddedRows
    from areal.models.blocks.shared_prefix import Branch


class PackedStates:
    """Convolutions and recurrences of sequences that are laid end to end. Make one per forward."""

    def __init__(self, bounds: list[int], device: torch.device) -> None:
        """bounds: of the sequences, rising from 0; empty ones are allowed."""
        self._lengths, self._device = [end - start for start, end in itertools.pairwise(bounds)], device
        self._places = upload(torch.cat([torch.arange(length) for length in self._lengths]), device)

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `StateBackend.convolve`."""
        return rounded(shifted_products(inputs, weight, self._places), weight, bias)

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """See `StateBackend.scan`."""
        return self._lanes.scan(recurrence)[0]

    @cached_property
    def _lanes(self) -> PaddedRows:
        return lanes(self._lengths, self._device)


class _TrainingBackend:
    """Attention with what indexers choose, and states whose tables are made for the first layer that has one: most
    models have none."""

    stateless: Final = True
    """The same call gives the same result any number of times, so that a block may be recomputed."""

    def __init__(
        self, attention: PackedAttention | SharedPrefixAttention, make_states: Callable[[], StateBackend]
    ) -> None:
        self._attention = attention
        self._make_states = make_states

    def __call__(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, **options: Any) -> Tensor:
        """See `AttentionBackend`; every feature is supported."""
        return self._attention(layer, query, key, value, **options)

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `SelectionBackend.select`."""
        self._attention.select(layer, query, key, weight, count=count)

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `StateBackend.convolve`."""
        return self._states.convolve(layer, inputs, weight, bias)

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """See `StateBackend.scan`."""
        return self._states.scan(layer, recurrence)

    @cached_property
    def _states(self) -> StateBackend:
        return self._make_states()


class PackedBackend(_TrainingBackend):
    """An `AttentionBackend` and a `StateBackend` within each sequence of a packed forward. Make one per forward."""

    def __init__(self, cu_seqlens: Tensor, num_tokens: int, device: torch.device) -> None:
        """cu_seqlens: [S + 1], rising from 0 to num_tokens (ModelError otherwise); empty sequences are allowed."""
        attention = PackedAttention(cu_seqlens, num_tokens, device)
        super().__init__(attention, lambda: PackedStates(cu_seqlens.tolist(), device))


class SharedPrefixBackend(_TrainingBackend):
    """An `AttentionBackend` and a `StateBackend` for roots and branches. Make one per forward."""

    def __init__(self, root_lengths: Sequence[int], branches: Sequence[Branch], device: torch.device) -> None:
        """root_lengths, branches: see `SharedPrefixAttention`, which raises ModelError for those that do not fit."""
        attention = SharedPrefixAttention(root_lengths, branches, device)
        super().__init__(attention, lambda: SharedPrefixStates(root_lengths, branches, device))
