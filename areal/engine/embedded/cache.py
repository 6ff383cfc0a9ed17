"""Memory of keys and values. It knows slots and lengths; it knows nothing of requests.

Shape letters: K key/value heads, D head_dim.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_MIN_LENGTH = 64
_MIN_SLOTS = 8


class KVCache:
    """Per layer, keys [slots, capacity, K, D] and values [slots, capacity, K, value_dim], and where a layer has an
    indexer, the keys of that; grows, never shrinks.

    Memory that holds no token is zero or a finite leftover: masked attention multiplies it by 0, and 0 * NaN would be
    NaN.
    """

    def __init__(self, *, max_slots: int, max_length: int) -> None:
        self.max_slots = max_slots
        self.max_length = max_length
        self.slots = 0
        self.capacity = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._index_keys: dict[int, Tensor] = {}

    @property
    def entry_bytes(self) -> int:
        """Bytes that one token takes, in all layers that forwards have shown."""
        return sum(tensor[:1, :1].nbytes for tensor in self._tensors())

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` sequences of `length` tokens, doubling what is there."""
        if slots <= self.slots and length <= self.capacity:
            return
        if slots > self.slots:
            self.slots = min(self.max_slots, max(slots, 2 * self.slots, _MIN_SLOTS))
        if length > self.capacity:
            self.capacity = min(self.max_length, max(length, 2 * self.capacity, _MIN_LENGTH))
        for index, (key, value) in self._layers.items():
            self._layers[index] = (self._grown(key), self._grown(value))
        for index, key in self._index_keys.items():
            self._index_keys[index] = self._grown(key)

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer. key, value: new entries; a new layer takes their head counts and dtype."""
        if index not in self._layers:
            self._layers[index] = (self._grown(key[None, :0]), self._grown(value[None, :0]))
        return self._layers[index]

    def index_keys(self, index: int, key: Tensor) -> Tensor:
        """Keys of the indexer of one layer, [slots, capacity, D]. key: new entries [T, D]."""
        if index not in self._index_keys:
            self._index_keys[index] = self._grown(key[None, :0])
        return self._index_keys[index]

    def _tensors(self) -> list[Tensor]:
        return [*itertools.chain.from_iterable(self._layers.values()), *self._index_keys.values()]

    def _grown(self, tensor: Tensor) -> Tensor:
        larger = tensor.new_zeros((self.slots, self.capacity, *tensor.shape[2:]))
        larger[: tensor.shape[0], : tensor.shape[1]] = tensor
        return larger

    def copy_rows(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` entries of slots `sources` to slots `targets` (both int64, disjoint)."""
        for tensor in self._tensors():
            used = tensor[:, :length]
            used.index_copy_(0, targets, used.index_select(0, sources))

    def clear_rows(self, slots: Tensor) -> None:
        """Zero the given slots (int64), after a computation that may have left non-finite entries."""
        for tensor in self._tensors():
            tensor.index_fill_(0, slots, 0)

    def clear_slots(self, slots: list[int]) -> None:
        """Zero the given slots; many tensors in one kernel, where the host knows the slots."""
        # Views of one piece each, which is what the kernel for many tensors takes.
        parts = [tensor[slot] for tensor in self._tensors() for slot in slots]
        if parts:
            torch._foreach_zero_(parts)

    def clear(self) -> None:
        """Drop all memory."""
        self._layers.clear()
        self._index_keys.clear()
        self.slots = self.capacity = 0
