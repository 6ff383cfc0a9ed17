"""From rewards to per-token advantages: the group baselines, REINFORCE++, and GAE by name.

`compute` must see the whole optimizer step: group means and batch whitening are statistics of all its samples. Groups
are found by id, may differ in size and need not be adjacent. Statistics run in float64. Formulas and defaults:
`catalog.ADVANTAGES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from areal.algorithm import catalog
from areal.algorithm.aggregate import check_shape
from areal.algorithm.gae import discounted_returns, gae, gae_turn
from areal.algorithm.ratios import on_mask
from areal.api import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compute", "compute_with_returns", "gae", "gae_turn", "whiten"]

_WHITEN_EPS: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Statistics of rewards per group, each spread back over the samples: [S], float64."""

    size: Tensor
    mean: Tensor
    constant: Tensor
    """bool [S]: the sample's group has one member or equal rewards, so there is nothing to learn from it."""
    index: Tensor
    """int64 [S], dense group number from 0."""
    number: int

    def sum(self, values: Tensor) -> Tensor:
        """Sum per group, spread back over the samples."""
        return values.new_zeros(self.number).index_add(0, self.index, values)[self.index]

    def std(self, rewards: Tensor, *, unbiased: bool) -> Tensor:
        """Standard deviation per group; 0 for groups of one."""
        squares = self.sum((rewards - self.mean) ** 2)
        return (squares / (self.size - 1 if unbiased else self.size).clamp(min=1.0)).sqrt()


def compute(
    name: str,
    rewards: Tensor,
    groups: Tensor,
    *,
    mask: Tensor,
    values: Tensor | None = None,
    token_rewards: Tensor | None = None,
    truncated: Tensor | None = None,
    turn_ids: Tensor | None = None,
    **params: Any,
) -> Tensor:
    """Advantages [S, L], 0 off the mask, in the dtype of `rewards` (float32 for integers).

    name: a key of `catalog.ADVANTAGES`; params: its parameters, unknown ones are errors.
    rewards: [S]. groups: int [S], equal for samples of one prompt. mask: [S, L], nonzero on policy tokens.
    values: [S, L], critic values, for gae and gae_turn. turn_ids: int [S, L], for gae_turn.
    token_rewards: [S, L], all the reward there is, per token, *in place of* `rewards` (see `place_rewards`); None puts
        the scalar reward on the last policy token. Estimators of a scalar reward use the sum over a sequence's tokens.
    truncated: bool [S], read by gae and gae_turn: bootstrap from the last value instead of 0, see
    `areal.algorithm.gae`.

    A group of one, and a group of equal rewards, give exactly 0 with every group baseline.
    Raises ConfigError for unknown names and missing inputs, DataError (a ValueError) for non-finite rewards or shapes
    that do not fit: a failed sample must be left out upstream, never averaged into its group's baseline.
    """
    return compute_with_returns(
        name,
        rewards,
        groups,
        mask=mask,
        values=values,
        token_rewards=token_rewards,
        truncated=truncated,
        turn_ids=turn_ids,
        **params,
    )[0]


def compute_with_returns(
    name: str,
    rewards: Tensor,
    groups: Tensor,
    *,
    mask: Tensor,
    values: Tensor | None = None,
    token_rewards: Tensor | None = None,
    truncated: Tensor | None = None,
    turn_ids: Tensor | None = None,
    **params: Any,
) -> tuple[Tensor, Tensor | None]:
    """As `compute`, with the critic's regression targets [S, L] (None for estimators without critic)."""
    options = catalog.parameters("advantage", name, catalog.ADVANTAGES, params)
    _check_inputs(rewards, groups, mask, token_rewards)
    dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    scalar = rewards.double()
    if name in {"gae", "gae_turn"}:
        per_token = _per_token(scalar, token_rewards, mask)
        return _with_critic(name, per_token, values, mask, truncated, turn_ids, options, dtype)
    if name == "reinforce_pp":
        returns = discounted_returns(_per_token(scalar, token_rewards, mask), mask=mask, gamma=options["gamma"])
        if options["whiten"]:
            returns = whiten(returns, mask, unbiased=options["unbiased"], eps=options["eps"])
        return returns.to(dtype), None
    if token_rewards is not None:
        scalar = on_mask(token_rewards, mask).double().sum(dim=1)
    statistics = _statistics(scalar, groups)
    lengths = (mask > 0).sum(dim=1).double()
    per_sequence = _BASELINES[name](scalar, statistics, lengths, options)
    spread = per_sequence.unsqueeze(1) * (mask > 0)
    if name == "reinforce_pp_baseline":
        spread = whiten(spread, mask, unbiased=options["unbiased"], eps=options["eps"])
    return spread.to(dtype), None


def whiten(values: Tensor, mask: Tensor, *, unbiased: bool = True, eps: float = _WHITEN_EPS) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the mask, 0 off it; all 0 for fewer than two values and for equal values."""
    chosen = values[mask > 0].double()
    if chosen.numel() < 2 or bool((chosen == chosen[0]).all()):
        return torch.zeros_like(values)
    variance = chosen.var(correction=1 if unbiased else 0)
    return on_mask((values.double() - chosen.mean()) * (variance + eps).rsqrt(), mask).to(values.dtype)


def _grpo(rewards: Tensor, groups: _Groups, lengths: Tensor, options: dict[str, Any]) -> Tensor:
    centred = _centred(rewards, groups)
    if not options["std"]:
        return centred
    return centred / (groups.std(rewards, unbiased=options["unbiased"]) + options["eps"])


def _drgrpo(rewards: Tensor, groups: _Groups, lengths: Tensor, options: dict[str, Any]) -> Tensor:
    return _centred(rewards, groups)


def _rloo(rewards: Tensor, groups: _Groups, lengths: Tensor, options: dict[str, Any]) -> Tensor:
    return _centred(rewards, groups) * groups.size / (groups.size - 1.0).clamp(min=1.0)


def _maxrl(rewards: Tensor, groups: _Groups, lengths: Tensor, options: dict[str, Any]) -> Tensor:
    positive = groups.mean > 0
    return torch.where(positive, _centred(rewards, groups) / torch.where(positive, groups.mean, 1.0), 0.0)


def _opo(rewards: Tensor, groups: _Groups, lengths: Tensor, options: dict[str, Any]) -> Tensor:
    baseline = groups.sum(lengths * rewards) / groups.sum(lengths).clamp(min=1.0)
    return torch.where(groups.constant, 0.0, rewards - baseline)


def _passk(rewards: Tensor, groups: _Groups, lengths: Tensor, options: dict[str, Any]) -> Tensor:
    result = torch.zeros_like(rewards)
    std = groups.std(rewards, unbiased=options["unbiased"])
    for group in range(groups.number):
        members = (groups.index == group).nonzero().flatten()
        if members.numel() < 2:
            continue
        (best, second), where = rewards[members].topk(2)
        result[members[where[0]]] = (best - second) / (std[members[0]] + options["eps"])
    return result


_BASELINES: Final[dict[str, Callable[[Tensor, _Groups, Tensor, dict[str, Any]], Tensor]]] = {
    "drgrpo": _drgrpo,
    "grpo": _grpo,
    "maxrl": _maxrl,
    "opo": _opo,
    "passk": _passk,
    "reinforce_pp_baseline": _drgrpo,
    "rloo": _rloo,
}


def _centred(rewards: Tensor, groups: _Groups) -> Tensor:
    """R - mean of the group, exactly 0 in constant groups: a rounding error of the mean must not be divided by its own
    std.
    """
    return torch.where(groups.constant, 0.0, rewards - groups.mean)


def _statistics(rewards: Tensor, groups: Tensor) -> _Groups:
    """Size, mean and constancy of each sample's group."""
    unique, index = torch.unique(groups, return_inverse=True)
    number = int(unique.numel())
    size = torch.bincount(index, minlength=number).to(rewards.dtype)
    mean = rewards.new_zeros(number).index_add(0, index, rewards) / size
    highest = rewards.new_full((number,), -torch.inf).scatter_reduce(0, index, rewards, "amax")
    lowest = rewards.new_full((number,), torch.inf).scatter_reduce(0, index, rewards, "amin")
    return _Groups(size=size[index], mean=mean[index], constant=(highest == lowest)[index], index=index, number=number)


def place_rewards(rewards: Tensor, *, mask: Tensor) -> Tensor:
    """r_t = 1[t is the last policy token] R, [S, L] in the dtype of `rewards`; 0 where a sequence has no policy
    token."""
    valid = mask > 0
    remaining = valid.long().flip(1).cumsum(dim=1).flip(1)
    return torch.where(valid & (remaining == 1), rewards.unsqueeze(1), 0.0)


def _per_token(rewards: Tensor, token_rewards: Tensor | None, mask: Tensor) -> Tensor:
    """Reward of every token, float64 [S, L]."""
    return place_rewards(rewards, mask=mask) if token_rewards is None else on_mask(token_rewards, mask).double()


def _with_critic(
    name: str,
    token_rewards: Tensor,
    values: Tensor | None,
    mask: Tensor,
    truncated: Tensor | None,
    turn_ids: Tensor | None,
    options: dict[str, Any],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of the estimators that need critic values."""
    if values is None:
        raise ConfigError(
            f"advantage {name!r} needs critic values [batch, seq]; group estimators such as 'grpo' need none"
        )
    check_shape("values", values, mask.shape)
    if not bool(torch.isfinite(values[mask > 0]).all()):
        raise DataError(f"advantage {name!r}: values are not finite on the mask")
    rest = {key: value for key, value in options.items() if key != "whiten"}
    if truncated is not None:
        check_shape("truncated", truncated, mask.shape[:1])
    if name == "gae":
        advantages, returns = gae(token_rewards, values.double(), mask=mask, truncated=truncated, **rest)
    else:
        if turn_ids is None:
            raise ConfigError("advantage 'gae_turn' needs turn_ids [batch, seq]")
        check_shape("turn_ids", turn_ids, mask.shape)
        advantages, returns = gae_turn(
            token_rewards, values.double(), mask=mask, turn_ids=turn_ids, truncated=truncated, **rest
        )
    if options["whiten"]:
        advantages = whiten(advantages, mask)
    return advantages.to(dtype), returns.to(dtype)


def _check_inputs(rewards: Tensor, groups: Tensor, mask: Tensor, token_rewards: Tensor | None) -> None:
    """Shapes fit and rewards are numbers."""
    if mask.dim() != 2:
        raise DataError(f"mask has shape {tuple(mask.shape)}, expected [batch, seq]")
    check_shape("rewards", rewards, mask.shape[:1])
    check_shape("groups", groups, mask.shape[:1])
    broken = (~torch.isfinite(rewards.double())).nonzero().flatten().tolist()
    if broken:
        raise DataError(
            f"rewards of samples {broken[:8]} are not finite: leave failed samples out, their group keeps its baseline"
        )
    if token_rewards is not None:
        check_shape("token_rewards", token_rewards, mask.shape)
        rows = (~torch.isfinite(on_mask(token_rewards, mask))).any(dim=1).nonzero().flatten().tolist()
        if rows:
            raise DataError(f"token_rewards of samples {rows[:8]} are not finite on the mask")
