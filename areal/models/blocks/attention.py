"""Self-attention: the layer that projects, and the backend that attends inside each packed sequence.

The layer hands rotated queries, keys and values to an `AttentionBackend` and knows no masks or caches. The backend
here, `PackedAttention`, uses only PyTorch operations that run on every device and in the backward pass.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from areal.api import ModelError
from areal.models.blocks.rectangles import MAX_PADDING_RATIO, attend, causal_mask, make_rectangle, restoring_order
from areal.models.blocks.rotary import rotate

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import AttentionBackend, BaseModelArgs
    from areal.models.blocks.rotary import Rotation


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


class PackedAttention:
    """Causal attention within each sequence of a packed forward. Make one per forward; layers share its index tables.

    Padding sits to the right of every sequence, so causality alone hides it and the fused kernel needs no mask.
    """

    stateless: Final = True
    """The same call gives the same result any number of times, so that a block may be recomputed."""

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
        self._batches = [make_rectangle(group, num_tokens, device) for group in groups]
        self._restore = restoring_order(groups, device)
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
            q, k, v = (batch.gather(heads).transpose(1, 2) for heads in (query, key, value))
            causal = softcap is None and sinks is None and (window is None or window >= batch.length)
            visible = None if causal else self._visible(batch.length, window)
            outputs.append(batch.scatter(attend(q, k, v, visible, scale, softcap=softcap, sinks=sinks)))
        return outputs[0] if self._restore is None else torch.cat(outputs).index_select(0, self._restore)

    def _visible(self, length: int, window: int | None) -> Tensor:
        """bool [length, length]: whether the query of a row sees the key of a column."""
        mask = self._masks.get((length, window))
        if mask is None:
            mask = causal_mask(length, 0, window, self._device)
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
