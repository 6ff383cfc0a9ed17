"""Pads packed tokens to rectangles and attends within a rectangle; the attention backends of training use it.

Nothing here knows documents or layers; a backend decides which tokens form a row and what a row sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from areal.utils.transfers import upload

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
        """[T, ...] -> [rows, length, ...]."""
        cells = heads if self.source is None else heads.index_select(0, self.source)
        return cells.unflatten(0, (self.rows, self.length))

    def scatter(self, attended: Tensor) -> Tensor:
        """[rows, num_heads, length, dim] -> [tokens of these sequences, num_heads, dim]."""
        flat = attended.transpose(1, 2).flatten(0, 1)
        return flat if self.kept is None else flat.index_select(0, self.kept)


def make_rectangle(spans: Sequence[tuple[int, int]], num_tokens: int, device: torch.device) -> Rectangle:
    """Return the rectangle of (start, length) spans, in their order, which is that of the `num_tokens` packed
    tokens."""
    rows, longest = len(spans), max(length for _, length in spans)
    total = sum(length for _, length in spans)
    starts, lengths = torch.tensor(spans).unbind(1)
    if rows * longest == total == num_tokens:
        return Rectangle(rows, longest, None, None)
    offsets = torch.arange(longest)
    real = offsets < lengths[:, None]
    source = torch.where(real, starts[:, None] + offsets, 0).flatten()
    kept = None if rows * longest == total else upload(real.flatten().nonzero().squeeze(1), device)
    return Rectangle(rows, longest, upload(source, device), kept)


def restoring_order(groups: Sequence[Sequence[tuple[int, int]]], device: torch.device) -> Tensor | None:
    """Index that puts the concatenated outputs of all groups back into packed order; None for a single group.

    groups: (start, length) spans that cover all packed tokens once.
    """
    if len(groups) == 1:
        return None
    packed = torch.cat([torch.arange(start, start + length) for group in groups for start, length in group])
    return upload(packed.argsort(), device)


class AttentionOptions(NamedTuple):
    """What a layer asks of attention; see `areal.api.AttentionBackend`."""

    scale: float
    window: int | None
    chunk: int | None
    softcap: float | None
    sinks: Tensor | None
    alibi: Tensor | None
    selected: bool = False


class Visibility:
    """Which keys each query of a rectangle sees. The keys are `earlier` tokens, and then the queries' own.

    Tables are made when they are first asked for, and kept: the layers of a model share one of these.
    """

    def __init__(self, queries: int, earlier: int, device: torch.device, *, real: Tensor | None = None) -> None:
        """real: bool [rows, 1, 1, keys], which keys are not padding on the left; None without any."""
        self._queries = queries
        self._earlier = earlier
        self._device = device
        self._real = real
        self._masks: dict[tuple[int | None, int | None], Tensor] = {}
        self._biases: dict[tuple[int | None, int | None, int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def is_causal(self, window: int | None, chunk: int | None) -> bool:
        """Return whether each query sees just the keys up to its own."""
        return not self._earlier and all(limit is None or limit >= self._queries for limit in (window, chunk))

    def mask(self, window: int | None, chunk: int | None) -> Tensor:
        """Return bool, broadcast over [rows, num_heads, queries, keys]. No query is without keys: each sees itself."""
        mask = self._masks.get((window, chunk))
        if mask is None:
            mask = torch.ones(self._queries, self._num_keys, dtype=torch.bool, device=self._device).tril(self._earlier)
            if window is not None:
                mask = mask.triu(self._earlier + 1 - window)
            if chunk is not None:
                mask = mask & self._same_chunk(chunk)
            mask = mask if self._real is None else mask & self._real
            self._masks[window, chunk] = mask
        return mask

    def bias(self, window: int | None, chunk: int | None, alibi: Tensor, dtype: torch.dtype) -> Tensor:
        """Linear biases, -inf where a query sees nothing, broadcast over [rows, num_heads, queries, keys]."""
        # Layers share the slopes' tensor as well; it is kept here, so that its id is not given to another one.
        found = self._biases.get((window, chunk, id(alibi), dtype))
        if found is None:
            bias = self.distances(dtype) * alibi.to(dtype)[:, None, None]
            found = alibi, bias.masked_fill(~self.mask(window, chunk), float("-inf"))
            self._biases[window, chunk, id(alibi), dtype] = found
        return found[1]

    def distances(self, dtype: torch.dtype) -> Tensor:
        """Return [queries, keys]: position of the key, counted from that of the query."""
        keys = torch.arange(self._num_keys, dtype=dtype, device=self._device)
        return keys - keys[self._earlier :, None]

    @property
    def _num_keys(self) -> int:
        return self._earlier + self._queries

    def _same_chunk(self, chunk: int) -> Tensor:
        """Return bool [queries, keys], or [rows, 1, queries, keys] where rows differ in how much of them is padding."""
        position = torch.arange(self._num_keys, device=self._device)
        if self._real is not None:
            position = position - (~self._real).sum(-1)
        number = position.div(chunk, rounding_mode="floor")
        return number[..., self._earlier :, None] == number[..., None, :]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    options: AttentionOptions,
    chosen: Tensor | None = None,
) -> Tensor:
    """Attend with [rows, num_heads, length, dim] over keys and values with a divisor of that many heads. chosen: bool
    [rows, 1, queries, keys], what is seen of what is visible; None for all of it."""
    window, chunk, alibi = options.window, options.chunk, options.alibi
    # Distances beyond 256 are no numbers of bfloat16, and the fused kernel wants biases in the dtype of the queries.
    wide = query.dtype in (torch.float32, torch.float64)
    unfused = options.softcap is not None or options.sinks is not None or not (alibi is None or wide)
    if unfused or (alibi is not None and chosen is not None):
        return _explicit(query, key, value, visibility, options, chosen)
    mask = None
    if chosen is not None:
        mask = chosen if window is None and chunk is None else chosen & visibility.mask(window, chunk)
    elif alibi is not None:
        mask = visibility.bias(window, chunk, alibi, query.dtype)
    elif not visibility.is_causal(window, chunk):
        mask = visibility.mask(window, chunk)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=options.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    options: AttentionOptions,
    chosen: Tensor | None,
) -> Tensor:
    """Return the attention spelled out, for what the fused kernel lacks; scores and softmax at least in float32."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1:
        key, value = key.repeat_interleave(queries_per_key, 1), value.repeat_interleave(queries_per_key, 1)
    scores = query @ key.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * options.scale
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if options.alibi is not None:
        scores = scores + visibility.distances(scores.dtype) * options.alibi.to(scores.dtype)[:, None, None]
    seen = visibility.mask(options.window, options.chunk)
    scores = scores.masked_fill(~(seen if chosen is None else seen & chosen), float("-inf"))
    if options.sinks is not None:
        extra = options.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, extra), -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value
