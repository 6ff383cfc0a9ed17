"""Attention of a rank that holds some heads, or some tokens, of what attention is about.

With context parallelism (Ulysses, arXiv 2309.14509) every rank has a piece of the packed tokens. For attention it
trades them for heads: all tokens of some heads, so that any backend for whole sequences does the rest unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from areal.models.parallel.collectives import exchange

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.api import AttentionBackend


class ParallelAttention:
    """An `AttentionBackend` around one for whole sequences. Make one per forward."""

    stateless: Final = True
    """The same call gives the same result any number of times, so that a block may be recomputed."""

    def __init__(
        self,
        inner: AttentionBackend,
        num_tokens: int,
        *,
        heads: tuple[int, int],
        tokens: ProcessGroup,
        compiled: bool = False,
    ) -> None:
        """inner: attends `num_tokens` packed tokens; what the ranks hold together beyond them is padding and gets
        zeros. heads: (rank, number of ranks) of tensor parallelism; tokens: ranks that hold pieces of the tokens.
        compiled: blocks are; the backend is then called as it is, since its tables differ from forward to forward."""
        self._inner = inner
        self._num_tokens = num_tokens
        self._head_rank, self._head_ranks = heads
        self._group = tokens
        self._attend = torch.compiler.disable(self._traced) if compiled else self._traced

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """See `AttentionBackend`; what the inner one supports."""
        attended: Tensor = self._attend(query, key, value, sinks, alibi, layer=layer, **options)
        return attended

    def _traced(
        self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, alibi: Tensor | None, **options: Any
    ) -> Tensor:
        size, heads = self._group.size(), query.shape[1]
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
        if padding:
            attended = functional.pad(attended, (0, 0, 0, 0, 0, padding))
        return self._to_tokens(attended) if size > 1 else attended

    def _to_heads(self, part: Tensor) -> Tensor:
        """[piece, heads, dim] -> [all tokens, heads / ranks, dim]."""
        by_rank = part.unflatten(1, (self._group.size(), -1)).transpose(0, 1)
        return exchange(by_rank.flatten(0, 1), self._group)

    def _to_tokens(self, part: Tensor) -> Tensor:
        """[all tokens, heads / ranks, dim] -> [piece, heads, dim]."""
        by_rank = exchange(part, self._group).unflatten(0, (self._group.size(), -1))
        return by_rank.transpose(0, 1).flatten(1, 2)


def _repeated(heads: Tensor, size: int, num_query_heads: int) -> Tensor:
    """Return the keys or values [T, heads, dim] as so many heads that every rank gets an equal share, next to its
    queries."""
    number = heads.shape[1]
    if number % size == 0:
        return heads
    return heads.repeat_interleave((size if size % number == 0 else num_query_heads) // number, 1)
