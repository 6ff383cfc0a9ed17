"""S <- exp(log_decay) S + key value^T; out = S^T query: state space duality (arXiv 2405.21060)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import DecayedSum
    from areal.models.blocks.recurrences.chunks import Borders


def decayed_sum_rows(rule: DecayedSum, borders: Borders, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, L, H, d_v] of rows of tokens, and the states [R, H, d_k, d_v] after their last ones.

    rule: with [R, L] in the place of [T]. initial: [R, H, d_k, d_v], what the first tokens of rows find; None for
    zeros. A token of zeros changes no state.
    """
    groups, (rows, length) = rule.key.shape[2], rule.value.shape[:2]
    tables = borders.tables(rule.chunk, rule.value.device)
    query, key, value = (tables.cut(tensor, groups) for tensor in (rule.query, rule.key, rule.value))
    log_decay = tables.cut(rule.log_decay[..., None], groups)
    per_key = log_decay.shape[3]
    # [R, N, G, C, d_k]: with the value heads of a key head side by side, products repeat no keys.
    query, key = query.squeeze(3), key.squeeze(3)
    met = (query @ key.mT)[:, :, :, None] * tables.between(log_decay.squeeze(-1))
    outputs = met @ value
    added = key.mT @ _side_by_side(value * tables.to_end(log_decay))
    across = tables.across(log_decay)[..., 0, :].repeat_interleave(value.shape[-1], -1).flatten(3)[..., None, :]
    state = torch.zeros_like(added[:, 0]) if initial is None else _joined(initial.to(added.dtype), groups)
    states = []
    for decay, sums in zip(across.unbind(1), added.unbind(1), strict=True):
        states.append(state)
        state = decay * state + sums
    read = (query @ torch.stack(states, 1)).unflatten(-1, (per_key, -1)).transpose(3, 4)
    outputs = outputs + read * tables.from_before(log_decay)
    final = state.unflatten(-1, (per_key, -1)).transpose(2, 3).flatten(1, 2)
    assert final.shape[0] == rows, "a state per row"
    return tables.join(outputs, length), final


def decayed_sum_step(rule: DecayedSum, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [R, H, d_v] of one more token per row, and the states after it.

    rule: with [R] in the place of [T]. state: [R, H, d_k, d_v], at least float32.
    """
    per_key = rule.value.shape[1] // rule.key.shape[1]
    query, key = (heads.to(state.dtype).repeat_interleave(per_key, 1) for heads in (rule.query, rule.key))
    state = state * rule.log_decay.to(state.dtype).exp()[..., None, None]
    state = state + key[..., :, None] * rule.value.to(state.dtype)[..., None, :]
    return (query[..., None, :] @ state).squeeze(-2), state


def _side_by_side(value: Tensor) -> Tensor:
    """[R, N, G, P, C, d_v] -> [R, N, G, C, P * d_v]."""
    return value.transpose(3, 4).flatten(4)


def _joined(state: Tensor, groups: int) -> Tensor:
    """[R, H, d_k, d_v] -> [R, G, d_k, P * d_v]."""
    return state.unflatten(1, (groups, -1)).transpose(2, 3).flatten(3)
