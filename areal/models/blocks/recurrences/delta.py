"""S <- exp(log_decay) S; S <- S + key (rate (value - S^T key))^T; out = S^T query: the gated delta rule.

In a chunk, what tokens write depends on what those before them wrote: a unit lower triangular system (arXiv
2406.06484), solved for two right sides at once: the values, and the decayed keys that read the state that comes in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import DeltaRule
    from areal.models.blocks.recurrences.chunks import Borders, ChunkTables

CHANNEL_CHUNK: Final = 16
"""Chunks of channels that decay by themselves are at most this long: each pair of tokens has a decay per channel."""
MAX_PAIR_CELLS: Final = 1 << 24
"""So many of those decays are held at a time; they are computed again in the backward pass."""


def delta_rule_rows(rule: DeltaRule, borders: Borders, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, L, H, d_v] of rows of tokens, and the states [R, H, d_k, d_v] after their last ones.

    rule: with [R, L] in the place of [T]. initial: [R, H, d_k, d_v], what the first tokens of rows find; None for
    zeros. A token of zeros changes no state.
    """
    groups, length = rule.key.shape[2], rule.value.shape[1]
    by_channel = rule.log_decay.dim() == 4
    tables = borders.tables(min(rule.chunk, CHANNEL_CHUNK) if by_channel else rule.chunk, rule.value.device)
    query, key, value = (tables.cut(tensor, groups) for tensor in (rule.query, rule.key, rule.value))
    log_decay = tables.cut(rule.log_decay if by_channel else rule.log_decay[..., None], groups)
    rate = tables.cut(rule.rate[..., None], groups)
    if by_channel:
        read, wrote = _channel_products(query, key, log_decay, tables)
    else:
        between = tables.between(log_decay.squeeze(-1))
        read, wrote = (query @ key.mT) * between, (key @ key.mT) * between
    before = tables.from_before(log_decay)
    sides = torch.cat((rate * value, rate * before * key), -1)
    solved = torch.linalg.solve_triangular((rate * wrote).tril(-1), sides, upper=False, unitriangular=True)
    own, reading = solved.split((value.shape[-1], key.shape[-1]), -1)
    kept = (key * tables.to_end(log_decay)).mT
    across = tables.across(log_decay).mT
    state = _start(initial, own, reading)
    states, written = [], []
    for part in zip(own.unbind(1), reading.unbind(1), kept.unbind(1), across.unbind(1), strict=True):
        states.append(state)
        written.append(part[0] - part[1] @ state)
        state = part[3] * state + part[2] @ written[-1]
    outputs = (query * before) @ torch.stack(states, 1) + read @ torch.stack(written, 1)
    return tables.join(outputs, length), state.flatten(1, 2)


def delta_rule_step(rule: DeltaRule, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, H, d_v] of one more token per row, and the states after it.

    rule: with [R] in the place of [T]. state: [R, H, d_k, d_v], at least float32.
    """
    per_key = rule.value.shape[1] // rule.key.shape[1]
    query, key = (heads.to(state.dtype).repeat_interleave(per_key, 1) for heads in (rule.query, rule.key))
    log_decay = rule.log_decay.to(state.dtype)
    state = state * (log_decay if log_decay.dim() == 3 else log_decay[..., None]).exp()[..., None]
    missing = rule.value.to(state.dtype) - (key[..., None, :] @ state).squeeze(-2)
    state = state + key[..., :, None] * (rule.rate.to(state.dtype)[..., None] * missing)[..., None, :]
    return (query[..., None, :] @ state).squeeze(-2), state


def _start(initial: Tensor | None, own: Tensor, reading: Tensor) -> Tensor:
    """Return the first state, [R, G, P, d_k, d_v]."""
    shape = (own.shape[0], *own.shape[2:4], reading.shape[-1], own.shape[-1])
    return own.new_zeros(shape) if initial is None else initial.to(own.dtype).reshape(shape)


def _channel_products(query: Tensor, key: Tensor, log_decay: Tensor, tables: ChunkTables) -> tuple[Tensor, Tensor]:
    """Return sum over d_k of query_i key_j and key_i key_j, each channel with its decay from j to i."""
    # Pairs have a decay per channel, the largest thing here by far; a slice of the chunks at a time has them.
    cells = log_decay[:, 0].numel() * tables.size
    count = max(1, MAX_PAIR_CELLS // max(cells, 1))
    pairs = tables.pairs
    # Without a graph nothing is computed again, and the machinery for it takes a second to import.
    again = partial(checkpoint, _slice_products, use_reentrant=False, preserve_rng_state=False)
    products = again if torch.is_grad_enabled() and log_decay.requires_grad else _slice_products
    parts: list[tuple[Tensor, Tensor]] = []
    for start in range(0, log_decay.shape[1], count):
        span = slice(start, start + count)
        met = tables if pairs.dim() == 2 else tables._replace(pairs=pairs[:, span])
        parts.append(products(query[:, span], key[:, span], log_decay[:, span], met))
    return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)


def _slice_products(query: Tensor, key: Tensor, log_decay: Tensor, tables: ChunkTables) -> tuple[Tensor, Tensor]:
    decayed = tables.between(log_decay) * key.unsqueeze(4)
    read, wrote = ((heads.unsqueeze(5) * decayed).sum(-1) for heads in (query, key))
    return read, wrote
