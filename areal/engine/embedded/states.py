"""States of the layers that have some, beside the key/value cache, and the backend that carries both in one forward.

A state has no length: it is that of the last token computed, and cannot be cut back. So a prompt is continued only from
a state that was kept at its end (`StateStore.rows_of`); without one, it is computed anew.

Shape letters: N decode rows, T tokens, C channels of a convolution, K tokens that its filters see.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from areal.engine.embedded.attention import StepAttention, cut_chunks
from areal.models.blocks.recurrences.chunks import Borders
from areal.models.blocks.recurrences.rows import PaddedRows, mapped, scan_step, state_shape
from areal.models.blocks.short_convolution import rounded, shifted_products
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import Recurrence
    from areal.engine.embedded.cache import KVCache
    from areal.engine.embedded.prompts import GroupedRows

_MIN_SLOTS = 8


class StateStore:
    """Per layer, the last inputs of its filters [slots, K - 1, C] and its state [slots, *state]; grows, never shrinks.

    A slot is written as a whole when a sequence enters it, so that nothing has to be cleared before.
    """

    def __init__(self, *, max_slots: int) -> None:
        self.max_slots = max_slots
        self.slots = 0
        self._inputs: dict[int, Tensor] = {}
        self._states: dict[int, Tensor] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no layer has a state, as far as forwards have shown."""
        return not (self._inputs or self._states)

    def reserve(self, slots: int) -> None:
        """Make room for `slots` sequences, doubling what is there."""
        if slots <= self.slots:
            return
        self.slots = min(self.max_slots, max(slots, 2 * self.slots, _MIN_SLOTS))
        for tensors in (self._inputs, self._states):
            for layer, tensor in tensors.items():
                tensors[layer] = self._grown(tensor)

    def inputs(self, layer: int, like: Tensor) -> Tensor:
        """Return the last inputs of a layer's filters; a new layer takes shape and dtype of `like` [any, K - 1, C]."""
        if layer not in self._inputs:
            self._inputs[layer] = self._grown(like[:0])
        return self._inputs[layer]

    def states(self, layer: int, like: Tensor) -> Tensor:
        """Return the states of a layer; a new layer takes shape and dtype of `like` [any, *state]."""
        if layer not in self._states:
            self._states[layer] = self._grown(like[:0])
        return self._states[layer]

    def rows_of(self, slots: Tensor) -> list[Tensor]:
        """Return copies of what the given slots (int64) hold, to `write` later."""
        return [tensor.index_select(0, slots) for tensor in self._tensors()]

    def write(self, slots: Tensor, rows: list[Tensor]) -> None:
        """Put what `rows_of` returned into other slots (int64)."""
        for tensor, row in zip(self._tensors(), rows, strict=True):
            tensor.index_copy_(0, slots, row)

    def copy_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots `sources` to slots `targets` (both int64, disjoint)."""
        self.write(targets, self.rows_of(sources))

    def clear_rows(self, slots: Tensor) -> None:
        """Zero the given slots (int64)."""
        for tensor in self._tensors():
            tensor.index_fill_(0, slots, 0)

    def clear(self) -> None:
        """Drop all memory."""
        self._inputs.clear()
        self._states.clear()
        self.slots = 0

    def _tensors(self) -> list[Tensor]:
        return [*self._inputs.values(), *self._states.values()]

    def _grown(self, tensor: Tensor) -> Tensor:
        larger = tensor.new_zeros((self.slots, *tensor.shape[1:]))
        larger[: tensor.shape[0]] = tensor
        return larger


class StepStates:
    """Convolutions and recurrences of one forward of the engine: decode rows of one token each, then fresh
    sequences."""

    def __init__(
        self, store: StateStore, *, num_decode: int, fresh_lengths: list[int], fresh_slots: list[int], device: Any
    ) -> None:
        """Read and write the slots 0 .. num_decode - 1; write `fresh_slots`, one for each fresh sequence."""
        self._store, self._num_decode = store, num_decode
        self._lengths = fresh_lengths
        self._chunks = cut_chunks(fresh_lengths, device)
        if fresh_lengths:
            lengths = torch.tensor(fresh_lengths)
            self._places = upload(torch.cat([torch.arange(length) for length in fresh_lengths]), device)
            self._slots, self._counts, self._ends = upload(
                torch.stack((torch.tensor(fresh_slots), lengths, lengths.cumsum(0))), device
            ).unbind()

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `areal.api.StateBackend.convolve`."""
        inputs, split = inputs.to(weight.dtype), self._num_decode
        kept = self._store.inputs(layer, inputs.new_empty(0, weight.shape[1] - 1, inputs.shape[1]))
        parts = []
        if split:
            window = torch.cat((kept[:split], inputs[:split, None]), 1)
            wide = torch.promote_types(weight.dtype, torch.float32)
            parts.append((window.to(wide) * weight.to(wide).T).sum(1))
            kept[:split] = window[:, 1:]
        if self._lengths:
            fresh = inputs[split:]
            parts.append(shifted_products(fresh, weight, self._places))
            self._keep_last(kept, fresh)
        return rounded(parts[0] if len(parts) == 1 else torch.cat(parts), weight, bias)

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """See `areal.api.StateBackend.scan`."""
        split, parts = self._num_decode, []
        like = recurrence.value.new_empty(
            (0, *state_shape(recurrence)),
            dtype=torch.promote_types(recurrence.value.dtype, torch.float32),
        )
        states = self._store.states(layer, like)
        if split:
            output, after = scan_step(mapped(recurrence, itemgetter(slice(split))), states[:split])
            states[:split] = after
            parts.append(output)
        first = 0
        for chunk in self._chunks:
            span = slice(split + chunk.start, split + chunk.end)
            rows = PaddedRows(self._lengths[first : first + chunk.count], Borders())
            output, after = rows.scan(mapped(recurrence, itemgetter(span)))
            states.index_copy_(0, self._slots[first : first + chunk.count], after)
            parts.append(output)
            first += chunk.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _keep_last(self, kept: Tensor, fresh: Tensor) -> None:
        """Write the last inputs of fresh sequences, zeros before the first one."""
        back = torch.arange(kept.shape[1], 0, -1, device=fresh.device)
        index = self._ends[:, None] - back
        is_own = back <= self._counts[:, None]
        last = fresh[index.clamp_min(0)].masked_fill(~is_own[..., None], 0.0)
        kept.index_copy_(0, self._slots, last)


class StepBackend:
    """An `areal.api.AttentionBackend` and an `areal.api.StateBackend` for one forward of the engine."""

    def __init__(
        self,
        cache: KVCache,
        store: StateStore,
        *,
        lengths: Tensor,
        longest: int,
        uniform: bool,
        fresh_lengths: list[int],
        fresh_slots: list[int],
        shared: GroupedRows | None = None,
        prompts: KVCache | None = None,
        fresh_groups: list[int | None] | None = None,
    ) -> None:
        """See `StepAttention`."""
        self._attention = StepAttention(
            cache,
            lengths=lengths,
            longest=longest,
            uniform=uniform,
            fresh_lengths=fresh_lengths,
            fresh_slots=fresh_slots,
            shared=shared,
            prompts=prompts,
            fresh_groups=fresh_groups,
        )
        self._make_states = lambda: StepStates(
            store,
            num_decode=lengths.shape[0],
            fresh_lengths=fresh_lengths,
            fresh_slots=fresh_slots,
            device=lengths.device,
        )
        self._made: StepStates | None = None

    def __call__(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, **options: Any) -> Tensor:
        """See `areal.api.AttentionBackend`; every feature is supported."""
        return self._attention(layer, query, key, value, **options)

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `areal.api.SelectionBackend.select`."""
        self._attention.select(layer, query, key, weight, count=count)

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `areal.api.StateBackend.convolve`."""
        return self._states().convolve(layer, inputs, weight, bias)

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """See `areal.api.StateBackend.scan`."""
        return self._states().scan(layer, recurrence)

    def _states(self) -> StepStates:
        # Most models have no states, and no use for their tables.
        if self._made is None:
            self._made = self._make_states()
        return self._made
