"""Attention and states of a rank that holds some heads, or some tokens, of what they are about.

With context parallelism (Ulysses, arXiv 2309.14509) every rank has a piece of the packed tokens. For attention, and for
recurrences, it trades them for heads, for convolutions for channels: all tokens of some heads, so that any backend for
whole sequences does the rest unchanged, with the bounds of all documents.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import OF_HEADS, Diagonal
from areal.models.blocks.recurrences.rows import mapped
from areal.models.blocks.selection import with_selection
from areal.models.blocks.short_convolution import with_states
from areal.models.parallel import collectives
from areal.models.parallel.collectives import exchange

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.api import AttentionBackend, Recurrence


class ParallelBackend:
    """An `AttentionBackend`, and a `StateBackend`, around those for whole sequences. Make one per forward."""

    stateless: Final = True
    """The same call gives the same result any number of times, so that a block may be recomputed."""

    def __init__(
        self,
        inner: AttentionBackend,
        num_tokens: int,
        *,
        heads: tuple[int, int],
        tokens: ProcessGroup | None,
        compiled: bool = False,
    ) -> None:
        """inner: computes `num_tokens` packed tokens; what the ranks hold together beyond them is padding and gets
        zeros. heads: (rank, number of ranks) of tensor parallelism; tokens: ranks that hold pieces of the tokens, None
        for a process that is alone. compiled: blocks are; the backend is then called as it is, since its tables differ
        from forward to forward."""
        self._inner = inner
        self._num_tokens = num_tokens
        self._head_rank, self._head_ranks = heads
        # A process that is alone never asks for the group.
        self._group: Any = tokens
        self._size = 1 if tokens is None else tokens.size()
        self._attend, self._convolve, self._scan = self._attend_whole, self._convolve_whole, self._scan_whole
        self._select = self._select_whole
        if compiled:
            self._attend = torch.compiler.disable(self._attend_whole)
            self._convolve = torch.compiler.disable(self._convolve_whole)
            self._scan = torch.compiler.disable(self._scan_whole)
            self._select = torch.compiler.disable(self._select_whole)

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """See `AttentionBackend`; what the inner one supports."""
        attended: Tensor = self._attend(query, key, value, sinks, alibi, layer=layer, **options)
        return attended

    def _attend_whole(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        sinks: Tensor | None,
        alibi: Tensor | None,
        **options: Any,
    ) -> Tensor:
        if key is None or value is None:  # those of an earlier layer, which the inner backend has as they were traded
            assert self._size == 1, "models that share keys between layers are not split"
            attended = self._inner(
                options.pop("layer"), query[: self._num_tokens], None, None, sinks=sinks, alibi=alibi, **options
            )
            return self._back(attended, query.shape[0] - self._num_tokens)
        size, heads = self._size, query.shape[1]
        if alibi is not None:
            alibi = alibi[self._head_rank * heads :][:heads]  # layers know the slopes of all heads
        if size > 1:
            query = self._to_heads(query)
            key, value = (self._to_heads(_repeated(part, size, heads)) for part in (key, value))
            share = slice(self._group.rank() * heads // size, (self._group.rank() + 1) * heads // size)
            sinks, alibi = (None if numbers is None else numbers[share] for numbers in (sinks, alibi))
        padding = query.shape[0] - self._num_tokens
        query, key, value = (part[: self._num_tokens] for part in (query, key, value))
        attended = self._inner(options.pop("layer"), query, key, value, sinks=sinks, alibi=alibi, **options)
        return self._back(attended, padding)

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `SelectionBackend.select`; ModelError where the inner one has none. Every rank chooses for all tokens,
        since it attends with some heads of all."""
        self._select(layer, query, key, weight, count)

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `StateBackend.convolve`; ModelError where the inner one has none."""
        return self._convolve(layer, inputs, weight, bias)

    def scan(self, layer: int, recurrence: Recurrence) -> Tensor:
        """See `StateBackend.scan`; ModelError where the inner one has none."""
        return self._scan(layer, recurrence)

    def _select_whole(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, count: int) -> None:
        if self._size > 1:
            query, key, weight = (collectives.join_pieces(part, self._group) for part in (query, key, weight))
        query, key, weight = (part[: self._num_tokens] for part in (query, key, weight))
        with_selection(self._inner, layer).select(layer, query, key, weight, count=count)

    def _convolve_whole(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        size, channels = self._size, inputs.shape[1]
        if size > 1:
            inputs = self._to_heads(inputs)
            share = slice(self._group.rank() * channels // size, (self._group.rank() + 1) * channels // size)
            weight, bias = weight[share], None if bias is None else bias[share]
        padding = inputs.shape[0] - self._num_tokens
        convolved = with_states(self._inner, layer).convolve(layer, inputs[: self._num_tokens], weight, bias)
        return self._back(convolved, padding)

    def _scan_whole(self, layer: int, recurrence: Recurrence) -> Tensor:
        size, heads = self._size, recurrence.value.shape[1]
        if size > 1:
            if not isinstance(recurrence, Diagonal):
                query, key = (_repeated(part, size, heads) for part in (recurrence.query, recurrence.key))
                recurrence = replace(recurrence, query=query, key=key)
            share = slice(self._group.rank() * heads // size, (self._group.rank() + 1) * heads // size)
            of_heads = [each.name for each in fields(recurrence) if each.metadata == OF_HEADS]
            own: Any = {name: getattr(recurrence, name)[share] for name in of_heads}
            recurrence = replace(mapped(recurrence, self._to_heads), **own)
        padding = recurrence.value.shape[0] - self._num_tokens
        recurrence = mapped(recurrence, itemgetter(slice(self._num_tokens)))
        return self._back(with_states(self._inner, layer).scan(layer, recurrence), padding)

    def _back(self, outputs: Tensor, padding: int) -> Tensor:
        """[num_tokens, heads / ranks, ...] -> [piece, heads, ...]."""
        if padding:
            outputs = torch.cat((outputs, outputs.new_zeros(padding, *outputs.shape[1:])))
        return self._to_tokens(outputs) if self._size > 1 else outputs

    def _to_heads(self, part: Tensor) -> Tensor:
        """[piece, heads, ...] -> [all tokens, heads / ranks, ...]."""
        by_rank = part.unflatten(1, (self._size, -1)).transpose(0, 1)
        return exchange(by_rank.flatten(0, 1), self._group)

    def _to_tokens(self, part: Tensor) -> Tensor:
        """[all tokens, heads / ranks, ...] -> [piece, heads, ...]."""
        by_rank = exchange(part, self._group).unflatten(0, (self._size, -1))
        return by_rank.transpose(0, 1).flatten(1, 2)


def _repeated(heads: Tensor, size: int, num_query_heads: int) -> Tensor:
    """Return the keys or values [T, heads, dim] as so many heads that every rank gets an equal share, next to its
    queries."""
    number = heads.shape[1]
    if number % size == 0:
        return heads
    return heads.repeat_interleave((size if size % number == 0 else num_query_heads) // number, 1)
