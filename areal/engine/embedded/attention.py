"""The attention of one forward over the cache. It knows slots and lengths; it knows nothing of requests or sampling.

One forward of the engine mixes two kinds of sequences, laid end to end: `decode_rows` sequences of one new token each,
whose past is in the cache (they occupy the slots 0 .. decode_rows - 1, so no gather is needed), and fresh sequences
that start at position 0. `StepAttention` writes the new keys and values of both and attends for both.

Shape letters: N decode rows, S fresh sequences, T tokens, H query heads, K key/value heads, G = H / K, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from areal.models.blocks.padded_attention import AttentionOptions
from areal.models.blocks.selection import Selections, choose
from areal.models.blocks.shared_keys import KeptKeys
from areal.models.blocks.varlen_attention import KERNELS, KeyRuns, find_kernel
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from areal.engine.embedded.cache import KVCache
    from areal.engine.embedded.prompts import GroupedRows

# Fresh sequences are padded to a common length per chunk: a chunk holds at most this many padded tokens, and no
# sequence longer than _MAX_STRETCH times its shortest (plus a few tokens), which bounds both memory and wasted work.
_CHUNK_TOKENS = 8192
_MAX_STRETCH = 1.5

_HIDDEN = -1e30
"""Of a score: e to this power is 0, and differences of it are numbers."""

_MaskName = tuple[str, int, int | None, int | None, int, torch.dtype]
"""Kind, length, window, chunk, id of the slopes, dtype of the queries."""


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

    lengths: int64 [N], tokens cached before this step, per decode row. longest: the maximum of what a row has itself,
    plus 1; uniform: whether all rows have as much. fresh_lengths: tokens of each fresh sequence; fresh_slots: the slot
    each one goes to. shared: prompts that decode rows share; prompts, and fresh_groups, where fresh sequences leave
    theirs (None for those that keep it themselves): all but the last token.
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
        shared: GroupedRows | None = None,
        prompts: KVCache | None = None,
        fresh_groups: list[int | None] | None = None,
    ) -> None:
        self._cache = cache
        self._shared = shared
        self._positions = lengths
        self._lengths = lengths = lengths if shared is None else lengths - shared.before
        self._longest = longest
        self._uniform = uniform
        self._num_decode = lengths.shape[0]
        self._fresh_lengths = fresh_lengths
        self._runs: dict[str, KeyRuns] = {}
        self._has_kernel = lengths.device.type in KERNELS
        device = lengths.device
        rows = torch.arange(self._num_decode, device=device)
        self._decode_index = torch.add(lengths, rows, alpha=cache.capacity)
        # With the slopes of each, so that their id is not given to other ones.
        self._masks: dict[_MaskName, tuple[Tensor | None, Tensor | None]] = {}
        self._selections = Selections[_Chosen]()
        self._kept = KeptKeys()
        self._chunks: list[FreshChunk] = []
        self._prompts: _PromptTokens | None = None
        if fresh_lengths:
            own = fresh_lengths
            if prompts is not None and fresh_groups is not None and fresh_groups.count(None) < len(fresh_groups):
                self._prompts = _PromptTokens.of(prompts, self._num_decode, fresh_lengths, fresh_groups)
                own = [1 if group is not None else count for count, group in zip(own, fresh_groups, strict=True)]
            # In host memory, and then one copy: on an accelerator a launch for each sequence takes longer.
            places = [
                torch.arange(slot * cache.capacity, slot * cache.capacity + length)
                for slot, length in zip(fresh_slots, own, strict=True)
            ]
            self._fresh_index = upload(torch.cat(places), device)
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
            if self._prompts is not None:
                self._prompts.write(layer, key, value)
        chosen = self._selections.of(layer) if selected else _Chosen(None, [None] * len(self._chunks))
        outputs = []
        split = self._num_decode
        if split or not self._chunks:
            if self._shared is None:
                outputs.append(self._decode(query[:split], keys, values, options, chosen.decode))
            else:
                outputs.append(self._decode_shared(self._shared, layer, query[:split], keys, values, options))
        if self._chunks:
            outputs += self._attend_fresh(query[split:], key[split:], value[split:], options, chosen.fresh)
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
        if self._prompts is not None:
            new = new.index_select(0, self._prompts.own_tokens)
        kept.flatten(0, 1).index_copy_(0, index, new)

    def _decode(
        self, query: Tensor, keys: Tensor, values: Tensor, options: AttentionOptions, chosen: Tensor | None
    ) -> Tensor:
        rows, heads, head_dim = query.shape
        kernel = None
        if self._has_kernel and rows:
            asked = options._replace(selected=chosen is not None)
            kernel = find_kernel(query, keys, values, asked, longest=self._longest)
        if kernel is not None:
            key, value = (each[:rows].flatten(0, 1) for each in (keys, values))
            runs = self._decode_runs(keys.shape[1])
            return kernel.forward(query, key, value, runs, scale=options.scale, window=options.window)[0]
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

    def _decode_shared(
        self,
        shared: GroupedRows,
        layer: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        options: AttentionOptions,
    ) -> Tensor:
        """Attend to prompts by group and to own tokens by row, and join the two by the sums of their weights."""
        rows, heads, head_dim = query.shape
        kv_heads = keys.shape[2]
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
        key, value = (each[:rows, : self._longest].transpose(1, 2) for each in (keys, values))
        mask = self._decode_mask(options, grouped)
        own, own_sum = attend_part(grouped, key, value, None if mask is None else mask.squeeze(3), options)
        # Rows and key heads are one index, so that queries of a group come to lie side by side in one gather.
        there, back = shared.heads(kv_heads)
        queries = grouped.flatten(0, 1).index_select(0, there).view(shared.groups, kv_heads, -1, head_dim)
        prompt_keys, prompt_values = shared.cache.layer(layer, keys[0, :0], values[0, :0])
        key, value = (each[: shared.groups, : shared.longest].transpose(1, 2) for each in (prompt_keys, prompt_values))
        mask = self._prompt_mask(shared, options, grouped)
        found, found_sum = attend_part(queries, key, value, mask, options._replace(sinks=None))
        size = grouped.shape[2]
        found = found.reshape(-1, size, found.shape[-1]).index_select(0, back).unflatten(0, (-1, kv_heads))
        found_sum = found_sum.reshape(-1, size).index_select(0, back).unflatten(0, (-1, kv_heads))
        if shared.rows is None:
            out = _joined(own, own_sum, found, found_sum)
        else:
            some, some_sum = own.index_select(0, shared.rows), own_sum.index_select(0, shared.rows)
            out = own.index_copy(0, shared.rows, _joined(some, some_sum, found, found_sum))
        return out.reshape(rows, heads, -1)

    def _attend_fresh(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, chosen: list[Tensor | None]
    ) -> list[Tensor]:
        """Attend within fresh sequences: in one call where the device has a kernel for it, else padded, by chunks."""
        lengths = self._fresh_lengths
        kernel = None
        if self._has_kernel:
            asked = options._replace(selected=any(each is not None for each in chosen))
            kernel = find_kernel(query, key, value, asked, longest=max(lengths))
        if kernel is not None:
            if "fresh" not in self._runs:
                self._runs["fresh"] = KeyRuns.of(lengths, lengths, query.device, causal=True)
            return [
                kernel.forward(query, key, value, self._runs["fresh"], scale=options.scale, window=options.window)[0]
            ]
        spans = [slice(part.start, part.end) for part in self._chunks]
        return [
            self._prefill(part, query[span], key[span], value[span], options, seen)
            for part, span, seen in zip(self._chunks, spans, chosen, strict=True)
        ]

    def _decode_runs(self, capacity: int) -> KeyRuns:
        """Return runs of one query each, and of as many keys as a row has."""
        if "decode" not in self._runs:
            bounds = torch.arange(self._num_decode + 1, dtype=torch.int32, device=self._lengths.device)
            used = (self._lengths + 1).int()
            self._runs["decode"] = KeyRuns(bounds, bounds * capacity, 1, self._longest, causal=True, used=used)
        return self._runs["decode"]

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
        longest = self._longest + (0 if self._shared is None else self._shared.longest)
        window, chunk = _binding(options.window, self._longest), _binding(options.chunk, longest)
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
                # The chunk's first token, counted from the row's own first one.
                hidden |= distance < -(self._positions % chunk)[:, None]
            self._masks[name] = _additive(hidden[:, None], distance[:, None], options.alibi, grouped), options.alibi
        return self._masks[name][0]

    def _prompt_mask(self, shared: GroupedRows, options: AttentionOptions, grouped: Tensor) -> Tensor | None:
        """Additive [groups, K or 1, members * G or 1, longest]; None when every row sees all of a prompt as long as the
        others. Where a row sees nothing of its prompt it is finite, so that a weight of 0 remains of it.

        grouped: the queries, [N, K, G, D].
        """
        longest = self._longest + shared.longest
        window, chunk = _binding(options.window, longest), _binding(options.chunk, longest)
        is_plain = window is None and chunk is None and options.alibi is None
        name = ("prompt", 0, window, chunk, id(options.alibi), grouped.dtype)
        if name not in self._masks:
            entries = torch.arange(shared.longest, device=grouped.device)
            hidden = (entries >= shared.lengths[:, None])[:, None]
            distance = hidden
            if not is_plain:
                position = self._positions[shared.row_of_place].view(shared.groups, -1, 1)
                distance = entries - position
                hidden = hidden.expand_as(distance).clone()
                if window is not None:
                    hidden |= distance <= -window
                if chunk is not None:
                    hidden |= distance < -(position % chunk)
            mask = None
            if not is_plain or bool(hidden.any()):
                mask = _additive(hidden, distance, options.alibi, grouped).transpose(2, 3)
                if not is_plain:
                    mask = mask.expand(-1, -1, -1, grouped.shape[2], -1)
                mask = mask.flatten(2, 3).clamp_min(_HIDDEN)
            self._masks[name] = mask, options.alibi
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


def attend_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Attend to some of the keys: what comes out, and the logarithm of the sum of the weights, by which parts join.

    query: [B, K, Q, D]; key: [B, K, L, D]; value: [B, K, L, V]; mask: additive, broadcast over [B, K, Q, L]. Returns
    [B, K, Q, V] and, at least in float32, [B, K, Q]. Sinks are one for each query.
    """
    if _is_fused(options, query) and key.shape[-1] == value.shape[-1] and query.is_cpu:
        found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=options.scale
        )
        return found
    scores = torch.matmul(query, key.transpose(2, 3)).float() * options.scale
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if mask is not None:
        scores = scores + mask
    total = scores.logsumexp(-1)
    if options.sinks is not None:
        total = torch.logaddexp(total, options.sinks.float().view(1, *query.shape[1:3]))
    return torch.matmul((scores - total[..., None]).exp().to(value.dtype), value), total


def _joined(own: Tensor, own_sum: Tensor, other: Tensor, other_sum: Tensor) -> Tensor:
    """Softmax over two parts, from that of each and the logarithms of their sums."""
    return torch.lerp(own, other, torch.sigmoid(other_sum - own_sum)[..., None].to(own.dtype))


@dataclass(frozen=True, slots=True)
class _PromptTokens:
    """Which of the new tokens go where: a shared prompt to `cache`, the others to the rows' own slots."""

    cache: KVCache
    own_tokens: Tensor
    """int64, places among the new tokens, those of decode rows included."""
    prompt_tokens: Tensor
    index: Tensor
    """int64, for each of prompt_tokens its entry of the cache, laid end to end."""

    @classmethod
    def of(cls, cache: KVCache, decode: int, lengths: list[int], groups: list[int | None]) -> _PromptTokens:
        """decode: tokens before the fresh ones. lengths, groups: see `StepAttention`."""
        own, shared, index, start = [torch.arange(decode)], [], [], decode
        for length, group in zip(lengths, groups, strict=True):
            kept = 0 if group is None else length - 1
            own.append(torch.arange(start + kept, start + length))
            if group is not None:
                shared.append(torch.arange(start, start + kept))
                index.append(torch.arange(kept) + group * cache.capacity)
            start += length
        return cls(cache, torch.cat(own), torch.cat(shared), torch.cat(index))

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Put the prompts' part of new keys and values [T, ...] into the cache."""
        for kept, new in zip(self.cache.layer(layer, key, value), (key, value), strict=True):
            kept.flatten(0, 1).index_copy_(0, self.index, new.index_select(0, self.prompt_tokens))


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
            scatter = upload(torch.cat([torch.arange(i * high, i * high + n) for i, n in enumerate(members)]), device)
        end = start + sum(members)
        chunks.append(FreshChunk(start=start, end=end, count=len(members), length=high, scatter=scatter))
        first, start = last + 1, end
    return chunks
