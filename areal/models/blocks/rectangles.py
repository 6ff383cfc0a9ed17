"""Packed tokens as rectangles, and attention over a rectangle: what the attention backends of training are built from.

Nothing here knows documents or layers; a backend decides which tokens form a row and what a row sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MAX_PADDING_RATIO = 2.0
"""Above this ratio of padded to real tokens, sequences are batched by length instead of all together."""


class Rectangle(NamedTuple):
    """Sequences attended together as `rows` times `length` cells, padded on the right."""

    rows: int
    length: int
    source: Tensor | None
    """int64 [rows * length]: packed index of each cell, 0 in padding; None if the cells are the packed tokens."""
    kept: Tensor | None
    """int64 [tokens of these sequences]: cells that are real, in packed order of the batch; None without padding."""

    def gather(self, heads: Tensor) -> Tensor:
        """[T, num_heads, dim] -> [rows, length, num_heads, dim]."""
        cells = heads if self.source is None else heads.index_select(0, self.source)
        return cells.unflatten(0, (self.rows, self.length))

    def scatter(self, attended: Tensor) -> Tensor:
        """[rows, num_heads, length, dim] -> [tokens of these sequences, num_heads, dim]."""
        flat = attended.transpose(1, 2).flatten(0, 1)
        return flat if self.kept is None else flat.index_select(0, self.kept)


def make_rectangle(spans: Sequence[tuple[int, int]], num_tokens: int, device: torch.device) -> Rectangle:
    """The rectangle of (start, length) spans, in their order, which is that of the `num_tokens` packed tokens."""
    rows, longest = len(spans), max(length for _, length in spans)
    total = sum(length for _, length in spans)
    starts, lengths = torch.tensor(spans).unbind(1)
    if rows * longest == total == num_tokens:
        return Rectangle(rows, longest, None, None)
    offsets = torch.arange(longest)
    real = offsets < lengths[:, None]
    source = torch.where(real, starts[:, None] + offsets, 0).flatten().to(device)
    kept = None if rows * longest == total else real.flatten().nonzero().squeeze(1).to(device)
    return Rectangle(rows, longest, source, kept)


def restoring_order(groups: Sequence[Sequence[tuple[int, int]]], device: torch.device) -> Tensor | None:
    """Index that puts the concatenated outputs of all groups back into packed order; None for a single group.

    groups: (start, length) spans that cover all packed tokens once.
    """
    if len(groups) == 1:
        return None
    packed = torch.cat([torch.arange(start, start + length) for group in groups for start, length in group])
    return packed.argsort().to(device)


def causal_mask(queries: int, earlier: int, window: int | None, device: torch.device) -> Tensor:
    """bool [queries, earlier + queries]: whether the query of a row sees the key of a column.

    The keys are `earlier` tokens and then the queries' own; window: a token sees itself and window - 1 before it.
    """
    mask = torch.ones(queries, earlier + queries, dtype=torch.bool, device=device).tril(earlier)
    return mask if window is None else mask.triu(earlier + 1 - window)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    scale: float,
    *,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of [rows, num_heads, length, dim] over keys and values with a divisor of that many heads.

    visible: bool, broadcast over [rows, num_heads, queries, keys]; None: causal, which softcap and sinks do not offer.
    """
    if softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=visible,
            is_causal=visible is None,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    if visible is None:
        raise ValueError("attend: softcap and sinks need the mask spelled out, got visible=None")
    return _explicit(query, key, value, visible, scale, softcap=softcap, sinks=sinks)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scale: float,
    *,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention spelled out, for what the fused kernel lacks; scores and softmax at least in float32."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1:
        key, value = key.repeat_interleave(queries_per_key, 1), value.repeat_interleave(queries_per_key, 1)
    scores = query @ key.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        extra = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, extra), -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value
