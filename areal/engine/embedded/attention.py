"""Key/value cache and the attention that reads it. It knows slots and lengths; it knows nothing of requests or
sampling.

One forward of the engine mixes two kinds of sequences, laid end to end: `decode_rows` sequences of one new token each,
whose past is in the cache (they occupy the slots 0 .. decode_rows - 1, so no gather is needed), and fresh sequences
that start at position 0. `StepAttention` writes the new keys and values of both and attends for both.

Shape letters: N decode rows, S fresh sequences, T tokens, H query heads, K key/value heads, G = H / K, D head_dim.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from areal.models.blocks.padded_attention import AttentionOptions
from areal.models.blocks.selection import Selections, choose
from areal.models.blocks.shared_keys import KeptKeys

_MIN_LENGTH = 64
_MIN_SLOTS = 8
# Fresh sequences are padded to a common length per chunk: a chunk holds at most this many padded tokens, and no
# sequence longer than _MAX_STRETCH times its shortest (plus a few tokens), which bounds both memory and wasted work.
_CHUNK_TOKENS = 8192
_MAX_STRETCH = 1.5

_MaskName = tuple[str, int, int | None, int | None, int, torch.dtype]
"""Kind, length, window, chunk, id of the slopes, dtype of the queries."""


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

    def clear(self) -> None:
        """Drop all memory."""
        self._layers.clear()
        self._index_keys.clear()
        self.slots = self.capacity = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshChunk:
    """Fresh sequences that are computed together."""

    start: int
    """First token, counted within the fresh tokens."""
    end: int
    count: int
    """Sequences."""
    length: int
    """Longest sequence."""
    scatter: Tensor | None
    """int64 [end - start], place of each token in the padded [count * length] layout; None when nothing is padded."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What an indexer chose: bool [N, 1, 1, longest] for decode rows and [count, 1, length, length] for each chunk of
    fresh ones; None where it is all."""

    decode: Tensor | None
    fresh: list[Tensor | None]


class StepAttention:
    """An `areal.api.AttentionBackend` and an `areal.api.SelectionBackend` for one forward of the engine.

    lengths: int64 [N], tokens cached before this step, per decode row. longest: the maximum of lengths, plus 1.
    fresh_lengths: tokens of each fresh sequence; fresh_slots: the slot each one goes to.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        lengths: Tensor,
        longest: int,
        uniform: bool,
        fresh_lengths: list[int],
        fresh_slots: list[int],
    ) -> None:
        self._cache = cache
        self._lengths = lengths
        self._longest = longest
        self._uniform = uniform
        self._num_decode = lengths.shape[0]
        self._fresh_tokens = sum(fresh_lengths)
        device = lengths.device
        rows = torch.arange(self._num_decode, device=device)
        self._decode_index = torch.add(lengths, rows, alpha=cache.capacity)
        # With the slopes of each, so that their id is not given to other ones.
        self._masks: dict[_MaskName, tuple[Tensor, Tensor | None]] = {}
        self._selections = Selections[_Chosen]()
        self._kept = KeptKeys()
        self._chunks: list[FreshChunk] = []
        if fresh_lengths:
            self._fresh_index = torch.cat(
                [
                    torch.arange(slot * cache.capacity, slot * cache.capacity + length, device=device)
                    for slot, length in zip(fresh_slots, fresh_lengths, strict=True)
                ]
            )
            self._chunks = cut_chunks(fresh_lengths, device)

    def __call__(  # noqa: PLR0913 - one keyword per feature of attention
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
        selected: bool = False,
        keep: bool = False,
    ) -> Tensor:
        """See `areal.api.AttentionBackend`: query [T, H, D], key [T, K, D], value [T, K, V] to [T, H, V]."""
        is_written = key is None  # by the layer that these keys are taken from, whose part of the cache is read
        key, value = self._kept.take(layer, key, value, keep=keep)
        keys, values = self._cache.layer(layer, key, value)
        options = AttentionOptions(scale, window, chunk, softcap, sinks, alibi)
        if not is_written:
            self._write(keys, key)
            self._write(values, value)
        chosen = self._selections.of(layer) if selected else _Chosen(None, [None] * len(self._chunks))
        outputs = []
        split = self._num_decode
        if split or not self._chunks:
            outputs.append(self._decode(query[:split], keys, values, options, chosen.decode))
        for part, seen in zip(self._chunks, chosen.fresh, strict=True):
            span = slice(split + part.start, split + part.end)
            outputs.append(self._prefill(part, query[span], key[span], value[span], options, seen))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `areal.api.SelectionBackend.select`."""
        keys = self._cache.index_keys(layer, key)
        self._write(keys, key)
        split, decode, fresh = self._num_decode, None, []
        if split:
            entries = torch.arange(self._longest, device=key.device)
            visible = (entries <= self._lengths[:, None])[:, None, None]
            past = keys[:split, : self._longest]
            decode = choose(query[:split, None], past, weight[:split, None], visible, count)
        for part in self._chunks:
            span = slice(split + part.start, split + part.end)
            q, k, w = (_pad(part, each[span]) for each in (query, key, weight))
            causal = torch.ones(part.length, part.length, dtype=torch.bool, device=key.device).tril()
            fresh.append(choose(q, k, w, causal, count))
        self._selections.keep(layer, _Chosen(decode, fresh))

    def _write(self, kept: Tensor, new: Tensor) -> None:
        """Put new entries [T, ...] where the cache [slots, capacity, ...] has their sequences."""
        index = self._decode_index
        if self._chunks:
            index = torch.cat((index, self._fresh_index)) if self._num_decode else self._fresh_index
        kept.flatten(0, 1).index_copy_(0, index, new)

    def _decode(
        self, query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions, chosen: Tensor | None
    ) -> Tensor:
        rows, heads, head_dim = query.shape
        kv_heads = keys.shape[2]
        # Query heads that share a key head stand in for query positions, so keys are never repeated in memory.
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
        key = keys[:rows, : self._longest].transpose(1, 2)
        value = values[:rows, : self._longest].transpose(1, 2)
        mask = _restricted(self._decode_mask(options, grouped), chosen, grouped)
        if _is_fused(options, query):
            mask = None if mask is None else mask.squeeze(3)
            out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=options.scale)
        else:
            out = _attend(grouped.unsqueeze(3), key, value, mask, options).squeeze(3)
        return out.reshape(rows, heads, -1)

    def _prefill(
        self,
        chunk: FreshChunk,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: AttentionOptions,
        chosen: Tensor | None,
    ) -> Tensor:
        heads, kv_heads = query.shape[1], key.shape[1]
        query, key, value = (_pad(chunk, tensor).transpose(1, 2) for tensor in (query, key, value))
        grouped = query.unflatten(1, (kv_heads, heads // kv_heads))
        if _is_fused(options, query):
            # What is chosen is causal already, as any mask of a layer with a window is.
            mask = _restricted(self._prefill_mask(chunk.length, options, grouped), chosen, grouped)
            mask = None if mask is None else mask.flatten(1, 2)
            if heads > kv_heads:
                key, value = (tensor.repeat_interleave(heads // kv_heads, 1) for tensor in (key, value))
            # Padding stands on the right, so the causal rule alone hides it from every real token.
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, scale=options.scale
            )
        else:
            mask = _restricted(self._prefill_mask(chunk.length, options, grouped, causal=True), chosen, grouped)
            out = _attend(grouped, key, value, mask, options).flatten(1, 2)
        flat = out.transpose(1, 2).flatten(0, 1)
        return flat if chunk.scatter is None else flat.index_select(0, chunk.scatter)

    def _decode_mask(self, options: AttentionOptions, grouped: Tensor) -> Tensor | None:
        """Additive [N, K or 1, G or 1, 1, longest]; None when every row sees every entry alike.

        grouped: the queries, [N, K, G, D].
        """
        window, chunk = _binding(options.window, self._longest), _binding(options.chunk, self._longest)
        if self._uniform and window is None and chunk is None and options.alibi is None:
            return None
        name = ("decode", 0, window, chunk, id(options.alibi), grouped.dtype)
        if name not in self._masks:
            entries = torch.arange(self._longest, device=grouped.device)
            distance = entries - self._lengths[:, None]
            hidden = distance > 0
            if window is not None:
                hidden |= distance <= -window
            if chunk is not None:
                hidden |= entries < (self._lengths - self._lengths % chunk)[:, None]
            self._masks[name] = _additive(hidden[:, None], distance[:, None], options.alibi, grouped), options.alibi
        return self._masks[name][0]

    def _prefill_mask(
        self, length: int, options: AttentionOptions, grouped: Tensor, *, causal: bool = False
    ) -> Tensor | None:
        """Additive [1, K or 1, G or 1, length, length]; None for plain causal, unless that is to be spelled out.

        grouped: the queries, [S, K, G, length, D].
        """
        window, chunk = _binding(options.window, length), _binding(options.chunk, length)
        if not causal and window is None and chunk is None and options.alibi is None:
            return None
        name = ("prefill", length, window, chunk, id(options.alibi), grouped.dtype)
        if name not in self._masks:
            position = torch.arange(length, device=grouped.device)
            distance = position - position[:, None]
            hidden = distance > 0
            if window is not None:
                hidden |= distance <= -window
            if chunk is not None:
                number = position.div(chunk, rounding_mode="floor")
                hidden |= number != number[:, None]
            self._masks[name] = _additive(hidden[None], distance[None], options.alibi, grouped), options.alibi
        return self._masks[name][0]


def _binding(limit: int | None, length: int) -> int | None:
    """Return the window or chunk, or None if nothing of that length is beyond it."""
    return None if limit is not None and limit >= length else limit


def _is_fused(options: AttentionOptions, query: Tensor) -> bool:
    """Whether PyTorch's kernel does it all; it wants biases in the dtype of the queries, and they need float32."""
    if options.softcap is not None or options.sinks is not None:
        return False
    return options.alibi is None or query.dtype in (torch.float32, torch.float64)


def _additive(hidden: Tensor, distance: Tensor, alibi: Tensor | None, grouped: Tensor) -> Tensor:
    """[B, K or 1, G or 1, Q, L] of hidden and distance [B, Q, L]: -inf where hidden, else the linear bias or 0."""
    hidden = hidden[:, None, None]
    if alibi is None:
        return torch.zeros(hidden.shape, dtype=grouped.dtype, device=grouped.device).masked_fill_(hidden, float("-inf"))
    dtype = torch.promote_types(grouped.dtype, torch.float32)
    slopes = alibi.to(dtype).view(grouped.shape[1], grouped.shape[2], 1, 1)
    return (slopes * distance[:, None, None].to(dtype)).masked_fill_(hidden, float("-inf"))


def _restricted(mask: Tensor | None, chosen: Tensor | None, grouped: Tensor) -> Tensor | None:
    """Return an additive mask, broadcast over [B, K, G, Q, L], that hides what is not chosen, bool [B, 1, Q, L]."""
    if chosen is None:
        return mask
    if mask is None:
        mask = torch.zeros((), dtype=grouped.dtype, device=grouped.device)
    return mask.masked_fill(~chosen[:, None], float("-inf"))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: AttentionOptions) -> Tensor:
    """Attention written out, for what the fused kernel cannot do.

    query: [B, K, G, Q, D]; key: [B, K, L, D]; value: [B, K, L, V]; mask: additive, broadcast over [B, K, G, Q, L].
    Formula: softmax(concat(softcap(scale * q k) + mask, sinks)) without the sink column, times v. Returns [B, K, G, Q,
    V].
    """
    scores = torch.matmul(query, key.unsqueeze(2).transpose(3, 4)).float() * options.scale
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if mask is not None:
        scores = scores + mask
    if options.sinks is not None:
        sink = options.sinks.float().view(1, query.shape[1], query.shape[2], 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights.to(value.dtype), value.unsqueeze(2))


def _pad(chunk: FreshChunk, tensor: Tensor) -> Tensor:
    """[tokens, ...] to [count, length, ...], zeros on the right."""
    if chunk.scatter is not None:
        padded = tensor.new_zeros((chunk.count * chunk.length, *tensor.shape[1:]))
        tensor = padded.index_copy_(0, chunk.scatter, tensor)
    return tensor.unflatten(0, (chunk.count, chunk.length))


def cut_chunks(lengths: list[int], device: torch.device) -> list[FreshChunk]:
    """Cut consecutive sequences into chunks of similar length (callers sort by length to make chunks large)."""
    chunks: list[FreshChunk] = []
    first, start = 0, 0
    while first < len(lengths):
        last, low, high = first, lengths[first], lengths[first]
        while last + 1 < len(lengths):
            new_low, new_high = min(low, lengths[last + 1]), max(high, lengths[last + 1])
            if new_high > _MAX_STRETCH * new_low + 16 or new_high * (last + 2 - first) > _CHUNK_TOKENS:
                break
            last, low, high = last + 1, new_low, new_high
        members = lengths[first : last + 1]
        scatter = None
        if low != high:
            scatter = torch.cat([torch.arange(i * high, i * high + n, device=device) for i, n in enumerate(members)])
        end = start + sum(members)
        chunks.append(FreshChunk(start=start, end=end, count=len(members), length=high, scatter=scatter))
        first, start = last + 1, end
    return chunks
