"""Self-attention: the layer that projects, and the backend that attends inside each packed sequence.

The layer hands rotated queries, keys and values to an `AttentionBackend` and knows no masks or caches. The backend
here, `PackedAttention`, uses only PyTorch operations that run on every device and in the backward pass.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from areal.api import ModelError
from areal.models.rotary import rotate

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend, BaseModelArgs
    from areal.models.rotary import Rotation

MAX_PADDING_RATIO = 2.0
"""Above this ratio of padded to real tokens, sequences are batched by length instead of all together."""


class SelfAttention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245): query heads share `num_kv_heads` keys and values in equal groups.

    query_norm, key_norm: applied to each head before the rotation, e.g. RMSNorm(head_dim); None for families without.
    """

    def __init__(
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        qkv_bias: bool,
        output_bias: bool,
        window: int | None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        hidden_size, head_dim = args.hidden_size, args.head_dim
        self.layer = layer
        self.head_dim = head_dim
        self.window = window
        self.scale = head_dim**-0.5
        self.q_proj = nn.Linear(hidden_size, args.num_heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden_size, args.num_kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden_size, args.num_kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(args.num_heads * head_dim, hidden_size, bias=output_bias)
        self.q_norm = query_norm
        self.k_norm = key_norm

    def forward(self, hidden: Tensor, rotation: Rotation, attention: AttentionBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        # -1: under tensor parallelism a rank holds only some of the heads.
        query = self.q_proj(hidden).unflatten(-1, (-1, self.head_dim))
        key = self.k_proj(hidden).unflatten(-1, (-1, self.head_dim))
        value = self.v_proj(hidden).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None:
            query = self.q_norm(query)
        if self.k_norm is not None:
            key = self.k_norm(key)
        attended = attention(
            self.layer, rotate(query, rotation), rotate(key, rotation), value, scale=self.scale, window=self.window
        )
        return self.o_proj(attended.flatten(1))


class _Batch(NamedTuple):
    """Sequences attended together as a rectangle of `rows` times `length` tokens, padded on the right."""

    rows: int
    length: int
    source: Tensor | None
    """int64 [rows * length]: packed index of each cell, 0 in padding; None if the cells are the packed tokens."""
    kept: Tensor | None
    """int64 [tokens of these sequences]: cells that are real, in packed order of the batch; None without padding."""


class PackedAttention:
    """Causal attention within each sequence of a packed forward. Make one per forward; layers share its index tables.

    Padding sits to the right of every sequence, so causality alone hides it and the fused kernel needs no mask.
    """

    def __init__(self, cu_seqlens: Tensor, num_tokens: int, device: torch.device) -> None:
        """cu_seqlens: [S + 1], rising from 0 to num_tokens (ModelError otherwise); empty sequences are allowed."""
        bounds = cu_seqlens.tolist()
        spans = [(start, end - start) for start, end in itertools.pairwise(bounds)]
        fits = len(bounds) > 1 and bounds[0] == 0 and bounds[-1] == num_tokens > 0
        if not fits or any(length < 0 for _, length in spans):
            raise ModelError(
                f"cu_seqlens must rise from 0 to the number of tokens, which is {num_tokens} (at least 1), "
                f"got {bounds if len(bounds) < 9 else [*bounds[:4], '...', *bounds[-4:]]}"
            )
        self._device = device
        groups = _group([span for span in spans if span[1]])
        self._batches = [_make_batch(group, num_tokens, device) for group in groups]
        self._restore = _restoring_order(groups, device)
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `AttentionBackend`; every feature is supported. Returns [T, num_heads, value_dim]."""
        outputs = []
        for batch in self._batches:
            q, k, v = (_to_rectangle(heads, batch) for heads in (query, key, value))
            if softcap is None and sinks is None:
                hidden_keys = window is not None and window < batch.length
                visible = self._visible(batch.length, window) if hidden_keys else None
                attended = _fused(q, k, v, visible, scale)
            else:
                visible = self._visible(batch.length, window)
                attended = _explicit(q, k, v, visible, scale, softcap=softcap, sinks=sinks)
            flat = attended.transpose(1, 2).flatten(0, 1)
            outputs.append(flat if batch.kept is None else flat[batch.kept])
        return outputs[0] if self._restore is None else torch.cat(outputs)[self._restore]

    def _visible(self, length: int, window: int | None) -> Tensor:
        """bool [length, length]: whether the query of a row sees the key of a column."""
        mask = self._masks.get((length, window))
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
            if window is not None:
                mask = mask.triu(1 - window)
            self._masks[length, window] = mask
        return mask


def _group(spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Split (start, length) spans into groups in which padding to the longest wastes less than half the cells."""
    longest = max(length for _, length in spans)
    if longest * len(spans) <= MAX_PADDING_RATIO * sum(length for _, length in spans):
        return [spans]
    groups: dict[int, list[tuple[int, int]]] = {}
    for span in spans:
        groups.setdefault((span[1] - 1).bit_length(), []).append(span)
    return list(groups.values())


def _make_batch(spans: list[tuple[int, int]], num_tokens: int, device: torch.device) -> _Batch:
    rows, longest = len(spans), max(length for _, length in spans)
    total = sum(length for _, length in spans)
    if rows * longest == total == num_tokens:
        return _Batch(rows, longest, None, None)
    starts, lengths = torch.tensor(spans).unbind(1)
    offsets = torch.arange(longest)
    real = offsets < lengths[:, None]
    source = torch.where(real, starts[:, None] + offsets, 0).flatten().to(device)
    kept = None if rows * longest == total else real.flatten().nonzero().squeeze(1).to(device)
    return _Batch(rows, longest, source, kept)


def _restoring_order(groups: list[list[tuple[int, int]]], device: torch.device) -> Tensor | None:
    """Index that puts the concatenated outputs of all groups back into packed order; None for a single group."""
    if len(groups) == 1:
        return None
    packed = torch.cat([torch.arange(start, start + length) for group in groups for start, length in group])
    return packed.argsort().to(device)


def _to_rectangle(heads: Tensor, batch: _Batch) -> Tensor:
    """[T, num_heads, dim] -> [rows, num_heads, length, dim]."""
    cells = heads if batch.source is None else heads[batch.source]
    return cells.unflatten(0, (batch.rows, batch.length)).transpose(1, 2)


def _fused(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible,
        is_causal=visible is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


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
    """Attention spelled out, for what the fused kernel lacks; scores and softmax in float32."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1:
        key, value = key.repeat_interleave(queries_per_key, 1), value.repeat_interleave(queries_per_key, 1)
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        extra = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, extra), -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value
