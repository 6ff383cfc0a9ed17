"""Generalised advantage estimation over policy tokens, or over turns, with masked positions transparent.

Value convention: values[t] is the critic's estimate at the step that emits token t, so delta_t = r_t + gamma V_next -
V_t where V_next is the value of the *next policy token*. Tool and observation tokens in between carry V_next and A_next
over unchanged; stepping through them would discount and bootstrap from values the critic never learns.

After the last policy token V_next is 0, or, for a truncated episode, the value of the last policy token itself: the
best estimate there is of the state that was cut off. All of it runs in float64 and returns the dtype of `values`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal.algorithm.ratios import on_mask


def gae(
    token_rewards: Tensor,
    values: Tensor,
    *,
    mask: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    lam_returns: float | None = None,
    adaptive_lambda: float | None = None,
    truncated: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both [S, L], 0 off the mask. arXiv 1506.02438.

    token_rewards, values, mask: [S, L]. lam_returns: another lambda for the returns A + V (VAPO uses 1), None for the
    same. adaptive_lambda: VAPO's alpha (0.05 in arXiv 2504.05118): the advantages of a sequence with n policy tokens
    use lambda = 1 - 1 / (alpha n), at least 0, instead of `lam`. truncated: bool [S].
    """
    rewards, state_values = on_mask(token_rewards, mask).double(), on_mask(values, mask).double()
    bootstrap = _bootstrap(state_values, mask, truncated)
    lam_S: Tensor | float = lam
    if adaptive_lambda is not None:
        lam_S = (1.0 - 1.0 / (adaptive_lambda * (mask > 0).sum(dim=1).clamp(min=1).double())).clamp(min=0.0)
    advantages = _recursion(rewards, state_values, mask > 0, bootstrap, gamma, lam_S)
    if lam_returns is None:
        targets = advantages
        if adaptive_lambda is not None:
            targets = _recursion(rewards, state_values, mask > 0, bootstrap, gamma, lam)
    else:
        targets = _recursion(rewards, state_values, mask > 0, bootstrap, gamma, lam_returns)
    return advantages.to(values.dtype), on_mask(targets + state_values, mask).to(values.dtype)


def gae_turn(
    token_rewards: Tensor,
    values: Tensor,
    *,
    mask: Tensor,
    turn_ids: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    truncated: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns with one step per turn, [S, L], constant over the policy tokens of a turn, 0 off the mask.

    turn_ids: int [S, L], changes where a new turn starts; read on the mask only. The value of a turn is that of its
    first policy token, its reward the sum over its policy tokens; a truncated episode bootstraps from the value of its
    last turn.
    """
    valid = mask > 0
    index_SL, first_SL, num_turns = _turn_index(valid, turn_ids)
    shape = (mask.shape[0], num_turns)
    flat = torch.where(valid, index_SL, torch.zeros_like(index_SL))
    rewards_SK = _scatter_sum(on_mask(token_rewards, valid).double(), flat, shape)
    values_SK = _scatter_sum(on_mask(on_mask(values, valid), first_SL).double(), flat, shape)
    valid_SK = _scatter_sum(first_SL.double(), flat, shape) > 0
    bootstrap = _bootstrap(values_SK, valid_SK, truncated)
    advantages_SK = _recursion(rewards_SK, values_SK, valid_SK, bootstrap, gamma, lam)
    returns_SK = advantages_SK + values_SK
    advantages, returns = (on_mask(turns.gather(1, flat), valid) for turns in (advantages_SK, returns_SK))
    return advantages.to(values.dtype), returns.to(values.dtype)


def discounted_returns(token_rewards: Tensor, *, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """G_t = sum over policy tokens s >= t of gamma^(s - t) r_s, counting policy tokens only; [S, L], 0 off the mask."""
    returns = _backward(on_mask(token_rewards, mask).double(), mask > 0, gamma)
    return returns.to(token_rewards.dtype)


def _recursion(
    rewards: Tensor, values: Tensor, valid: Tensor, bootstrap: Tensor, gamma: float, lam: Tensor | float
) -> Tensor:
    """A_t = delta_t + gamma lam A_next over the valid columns from right to left."""
    next_values = _next_valid(values, valid, bootstrap)
    deltas = rewards + gamma * next_values - values
    return _backward(deltas, valid, gamma * lam)


def _next_valid(values: Tensor, valid: Tensor, bootstrap: Tensor) -> Tensor:
    """Value of the next valid column to the right of each column, [S, L]; `bootstrap` where there is none."""
    width = values.shape[1]
    positions = torch.arange(width, device=values.device).expand_as(values)
    candidates = torch.where(valid, positions, torch.full_like(positions, width))
    # Reverse running minimum: index of the nearest valid column at or after each column.
    nearest = candidates.flip(1).cummin(dim=1).values.flip(1)
    following = torch.cat([nearest[:, 1:], torch.full_like(nearest[:, :1], width)], dim=1)
    return torch.cat([values, bootstrap.unsqueeze(1)], dim=1).gather(1, following)


def _backward(increments: Tensor, valid: Tensor, decay: Tensor | float) -> Tensor:
    """x_t = increments_t + decay x_next from the last column to the first, skipping invalid columns, 0 there.

    decay: a number, or one per row [S].
    """
    # One contiguous row per step: columns of a row-major tensor would touch every cache line of it each time.
    increments_LS, valid_LS = increments.t().contiguous(), valid.t().contiguous()
    result = torch.empty_like(increments_LS)
    state = increments.new_zeros(increments.shape[0])
    for t in range(increments_LS.shape[0] - 1, -1, -1):
        state = torch.where(valid_LS[t], increments_LS[t] + decay * state, state)
        result[t] = state
    return on_mask(result.t().contiguous(), valid)


def _bootstrap(values: Tensor, mask: Tensor, truncated: Tensor | None) -> Tensor:
    """Value after the last valid column, [S]: 0, or the last valid value of a truncated row."""
    if truncated is None or values.shape[1] == 0:
        return values.new_zeros(values.shape[0])
    positions = torch.arange(values.shape[1], device=values.device)
    last = torch.where(mask > 0, positions, torch.full_like(positions, -1)).max(dim=1).values
    value = values.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(truncated.bool() & (last >= 0), value, torch.zeros_like(value))


def _turn_index(valid: Tensor, turn_ids: Tensor) -> tuple[Tensor, Tensor, int]:
    """(turn of each policy token counted from 0, whether it is the first of its turn, number of turns of the longest
    row).
    """
    positions = torch.arange(valid.shape[1], device=valid.device).expand_as(turn_ids)
    latest = torch.where(valid, positions, torch.full_like(positions, -1)).cummax(dim=1).values
    previous = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    previous_turn = turn_ids.gather(1, previous.clamp(min=0))
    first = valid & ((previous < 0) | (previous_turn != turn_ids))
    index = first.long().cumsum(dim=1) - 1
    num_turns = int(index.max()) + 1 if index.numel() else 0
    return index, first, max(num_turns, 1)


def _scatter_sum(values: Tensor, index: Tensor, shape: tuple[int, int]) -> Tensor:
    """Sum the columns of each row into `shape` by index; values off the mask must be 0."""
    return values.new_zeros(shape).scatter_add(1, index, values)
