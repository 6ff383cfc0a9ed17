"""Advantages: how rewards become a number per token. Group baselines, REINFORCE++, GAE; and reward shaping before them.

An estimator must see the whole optimizer step: group means and batch whitening are statistics of all its samples.
Groups are found by id, may differ in size and need not be adjacent. Statistics run in float64 and over samples
(`areal.algorithm.groups`). A group of one and a group of equal rewards give exactly 0 wherever a group baseline exists.
Estimators that see turns are here where they need a critic, the others in `areal.algorithm.turn_credit`.

Value convention of GAE: values[t] is the critic's estimate at the step that emits token t, so delta_t = r_t + gamma
V_next - V_t where V_next is the value of the *next policy token*. Tool and observation tokens in between carry V_next
and A_next over unchanged; stepping through them would discount and bootstrap from values the critic never learns. After
the last policy token V_next is 0, or, for a truncated episode, the value of the last policy token itself: the best
estimate there is of the state that was cut off.

Notation: R reward of a sample, r_t of a token, A advantage, V critic value, n policy tokens of a sequence. An estimator
of your own derives from `Advantage` and is named by its path (docs/algorithms.md). Importing this module does not
import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from areal.algorithm.blocks import check_fields
from areal.algorithm.groups import GroupStatistics, sums_of_samples
from areal.algorithm.tokens import check_shape, on_mask
from areal.api import Config, ConfigError, DataError, number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBatch:
    """Rewards of a whole optimizer step and what estimators may need beside them; checked, rewards in float64."""

    rewards: Tensor
    """[S], all the reward of each sequence's sample: `outcomes`, and what turns and tokens of all its sequences got
    beside it, counted once."""
    groups: Tensor
    """int [S], equal for samples of one prompt."""
    mask: Tensor
    """[S, L], nonzero on policy tokens."""
    token_rewards: Tensor
    """[S, L], 0 off the mask: reward of each token; the outcome is on the last policy token of every sequence, the
    reward of a turn on that of the turn."""
    outcomes: Tensor
    """[S], reward of the sample without what turns and tokens got."""
    values: Tensor | None = None
    """[S, L], critic values; never None for an estimator with `needs_critic`."""
    truncated: Tensor | None = None
    """bool [S]: the episode was cut off."""
    turn_ids: Tensor | None = None
    """int [S, L], changes where a new turn starts."""
    samples: Tensor | None = None
    """int [S], equal for the sequences of one sample; None when each is one."""

    def statistics(self) -> GroupStatistics:
        """Return the statistics of `rewards` in each group, over samples."""
        return GroupStatistics.of(self.rewards, self.groups, self.samples)

    def on_tokens(self, per_sequence: Tensor) -> Tensor:
        """Spread [S] over the policy tokens of each sequence, [S, L]."""
        return per_sequence.unsqueeze(1) * (self.mask > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageEstimate:
    """Result of an estimator."""

    advantages: Tensor
    """[S, L], 0 off the mask."""
    returns: Tensor | None = None
    """[S, L], regression targets of the critic; None for estimators without critic."""


@dataclass(frozen=True, kw_only=True)
class Advantage(Config, ABC):
    """Contract of advantage estimators."""

    formula: ClassVar[str] = ""
    """The estimate in one line."""
    source: ClassVar[str] = ""
    """Paper it is from."""
    needs_critic: ClassVar[bool] = False
    """Whether critic values are needed."""
    needs_group: ClassVar[bool] = False
    """Whether a sample is compared with the others of its prompt, so that a group of one has no advantage."""

    def __post_init__(self) -> None:
        """Check types and ranges of the fields."""
        check_fields(self, "advantage")

    @abstractmethod
    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""


def reward_batch(
    rewards: Tensor,
    groups: Tensor,
    *,
    mask: Tensor,
    values: Tensor | None = None,
    token_rewards: Tensor | None = None,
    truncated: Tensor | None = None,
    turn_ids: Tensor | None = None,
    turn_rewards: Tensor | None = None,
    samples: Tensor | None = None,
) -> RewardBatch:
    """Check the inputs of an estimator and bring them into its form.

    rewards: [S], outcomes. token_rewards: [S, L], all the reward there is, per token, outcome and turns included (see
    `place_rewards`); None puts the outcome on the last policy token, and adds `turn_rewards`, [S, L], where they are.
    The others: see `RewardBatch`.

    Raises DataError (a ValueError) for non-finite rewards or shapes that do not fit: a failed sample must be left out
    upstream, never averaged into its group's baseline.
    """
    if mask.dim() != 2:
        raise DataError(f"mask has shape {tuple(mask.shape)}, expected [batch, seq]")
    per_sequence = {"rewards": rewards, "groups": groups, "truncated": truncated, "samples": samples}
    per_token = {
        "values": values, "token_rewards": token_rewards, "turn_ids": turn_ids, "turn_rewards": turn_rewards,
    }  # fmt: skip
    for name, tensor in {**per_sequence, **per_token}.items():
        if tensor is not None:
            check_shape(name, tensor, mask.shape[:1] if name in per_sequence else mask.shape)
    broken = (~rewards.double().isfinite()).nonzero().flatten().tolist()
    if broken:
        raise DataError(
            f"rewards of samples {broken[:8]} are not finite: leave failed samples out, their group keeps its baseline"
        )
    if values is not None and not bool(values[mask > 0].isfinite().all()):
        raise DataError("values are not finite on the mask")
    outcomes = scalar = rewards.double()
    if token_rewards is None and turn_rewards is None:
        placed = place_rewards(outcomes, mask=mask)
    elif token_rewards is None:
        assert turn_rewards is not None
        beside = _finite_on("turn_rewards", turn_rewards, mask)
        placed = place_rewards(outcomes, mask=mask) + beside
        scalar = outcomes + sums_of_samples(beside.sum(dim=1), samples)
    else:
        placed = _finite_on("token_rewards", token_rewards, mask)
        scalar = placed.sum(dim=1)
        if samples is not None:
            beside = scalar - place_rewards(outcomes, mask=mask).sum(dim=1)
            scalar = outcomes + sums_of_samples(beside, samples)
    return RewardBatch(
        rewards=scalar,
        outcomes=outcomes,
        groups=groups,
        mask=mask,
        token_rewards=placed,
        samples=samples,
        values=None if values is None else values.double(),
        truncated=truncated,
        turn_ids=turn_ids,
    )


def _finite_on(name: str, values: Tensor, mask: Tensor) -> Tensor:
    placed = on_mask(values, mask).double()
    rows = (~placed.isfinite()).any(dim=1).nonzero().flatten().tolist()
    if rows:
        raise DataError(f"{name} of samples {rows[:8]} are not finite on the mask")
    return placed


# ------------------------------------------------------------------------------------------------ group baselines


@dataclass(frozen=True, kw_only=True)
class DrGRPO(Advantage):
    """Reward above the group's mean."""

    formula: ClassVar[str] = "A = R - mean(R in group)"
    source: ClassVar[str] = "Dr.GRPO, arXiv 2503.20783"
    needs_group: ClassVar[bool] = True

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        return AdvantageEstimate(advantages=batch.on_tokens(batch.statistics().centred))


@dataclass(frozen=True, kw_only=True)
class GRPO(Advantage):
    """Reward above the group's mean in units of the group's standard deviation."""

    formula: ClassVar[str] = "A = (R - mean(R in group)) / (std(R in group) + eps)"
    source: ClassVar[str] = "GRPO, arXiv 2402.03300"
    needs_group: ClassVar[bool] = True
    eps: float = number(1e-6, at_least=0)
    """Added to the standard deviation; >= 0."""
    std: bool = True
    """Divide by the standard deviation; false is Dr.GRPO's estimate."""
    unbiased: bool = True
    """Standard deviation with n - 1 in the denominator."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        groups = batch.statistics()
        values = groups.centred
        if self.std:
            values = values / (groups.std(batch.rewards, unbiased=self.unbiased) + self.eps)
        return AdvantageEstimate(advantages=batch.on_tokens(values))


@dataclass(frozen=True, kw_only=True)
class MaxRL(Advantage):
    """Reward above the group's mean in units of that mean."""

    formula: ClassVar[str] = "A = (R - mu) / mu with mu = mean(R in group); 0 where mu <= 0"
    source: ClassVar[str] = "MaxRL"
    needs_group: ClassVar[bool] = True

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        groups = batch.statistics()
        positive = groups.mean > 0
        values = (groups.centred / groups.mean.masked_fill(~positive, 1.0)).masked_fill(~positive, 0.0)
        return AdvantageEstimate(advantages=batch.on_tokens(values))


@dataclass(frozen=True, kw_only=True)
class OPO(Advantage):
    """Reward above the group's mean weighted by length, the optimal baseline."""

    formula: ClassVar[str] = "A = R - sum(n R) / sum(n), length-weighted group baseline"
    source: ClassVar[str] = "OPO, arXiv 2505.23585"
    needs_group: ClassVar[bool] = True

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        groups, lengths = batch.statistics(), (batch.mask > 0).sum(dim=1).double()
        baseline = groups.sum(lengths * batch.rewards) / groups.sum(lengths).clamp(min=1.0)
        values = (batch.rewards - baseline).masked_fill(groups.constant, 0.0)
        return AdvantageEstimate(advantages=batch.on_tokens(values))


@dataclass(frozen=True, kw_only=True)
class PassK(Advantage):
    """Only the best sample of a group counts, by its lead over the second."""

    formula: ClassVar[str] = "best sample of the group: (R_max - R_second) / (std + eps); the others 0"
    source: ClassVar[str] = "pass@k training, leave-one-out maximum"
    needs_group: ClassVar[bool] = True
    eps: float = number(1e-6, at_least=0)
    """Added to the standard deviation; >= 0."""
    unbiased: bool = True
    """Standard deviation with n - 1 in the denominator."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        groups, rewards = batch.statistics(), batch.rewards
        values, std = rewards.new_zeros(rewards.shape), groups.std(rewards, unbiased=self.unbiased)
        of_samples = groups.sample_means(rewards)
        for group in range(groups.number):
            members = (groups.index == group).nonzero().flatten()
            samples = groups.sample_index[members].unique()
            if samples.numel() < 2:
                continue
            (best, second), where = of_samples[samples].topk(2)
            values[groups.sample_index == samples[where[0]]] = (best - second) / (std[members[0]] + self.eps)
        return AdvantageEstimate(advantages=batch.on_tokens(values))


@dataclass(frozen=True, kw_only=True)
class ReinforcePPBaseline(Advantage):
    """Reward above the group's mean, whitened over the batch."""

    formula: ClassVar[str] = "R - mean(R in group) on every token, then whitened over all tokens of the batch"
    source: ClassVar[str] = "REINFORCE++-baseline, arXiv 2501.03262"
    needs_group: ClassVar[bool] = True
    eps: float = number(1e-8, at_least=0)
    """Added to the variance; >= 0."""
    unbiased: bool = True
    """Variance with n - 1 in the denominator."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        spread = batch.on_tokens(batch.statistics().centred)
        return AdvantageEstimate(advantages=whiten(spread, batch.mask, unbiased=self.unbiased, eps=self.eps))


@dataclass(frozen=True, kw_only=True)
class RLOO(Advantage):
    """Reward above the mean of the group's other samples."""

    formula: ClassVar[str] = "A = R - mean(R of the other samples of the group)"
    source: ClassVar[str] = "RLOO, arXiv 2402.14740"
    needs_group: ClassVar[bool] = True

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        groups = batch.statistics()
        values = groups.centred * groups.size / (groups.size - 1.0).clamp(min=1.0)
        return AdvantageEstimate(advantages=batch.on_tokens(values))


# -------------------------------------------------------------------------------- estimators that see each token


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Advantage):
    """Discounted return of every token, whitened over the batch."""

    formula: ClassVar[str] = (
        "G_t = sum_s>=t gamma^(s-t) gamma_turn^(turns between) r_s over policy tokens; A = (G - mean) / sqrt(var + "
        "eps) over all tokens of the batch"
    )
    source: ClassVar[str] = "REINFORCE++, arXiv 2501.03262"
    eps: float = number(1e-8, at_least=0)
    """Added to the variance; >= 0."""
    gamma: float = number(1.0, at_least=0, at_most=1)
    """Discount per policy token, 0 .. 1."""
    gamma_turn: float = number(1.0, at_least=0, at_most=1)
    """Discount at every border between turns, beside `gamma`, 0 .. 1."""
    unbiased: bool = True
    """Variance with n - 1 in the denominator."""
    whiten: bool = True
    """Whiten over the tokens of the batch."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        valid, decay = batch.mask > 0, self.gamma
        if self.gamma_turn == 1:
            returns = discounted_sums(batch.token_rewards, valid, decay)
        else:
            if batch.turn_ids is None:
                raise ConfigError("advantage 'reinforce_pp' with gamma_turn needs turn_ids [batch, seq]")
            _, first_SL = _turns(valid, batch.turn_ids)
            crosses_SL = _next_valid(first_SL.double(), valid, batch.rewards.new_zeros(valid.shape[0])) > 0
            decay_SL = batch.token_rewards.new_full(valid.shape, decay).where(~crosses_SL, decay * self.gamma_turn)
            returns = discounted_sums(batch.token_rewards, valid, decay_SL)
        if self.whiten:
            returns = whiten(returns, batch.mask, unbiased=self.unbiased, eps=self.eps)
        return AdvantageEstimate(advantages=returns)


@dataclass(frozen=True, kw_only=True)
class GAE(Advantage):
    """Generalised advantage estimation over policy tokens."""

    formula: ClassVar[str] = (
        "d_t = r_t + gamma V_t+1 - V_t; A_t = d_t + gamma lam A_t+1 over policy tokens; masked tokens are transparent"
    )
    source: ClassVar[str] = "GAE, arXiv 1506.02438; adaptive_lambda and lam_returns: VAPO, arXiv 2504.05118"
    needs_critic: ClassVar[bool] = True
    adaptive_lambda: float | None = number(None, above=0, because="the paper uses 0.05")
    """VAPO's alpha (0.05 in the paper), > 0: a sequence with n policy tokens uses lambda = 1 - 1 / (alpha n), at least
    0, instead of `lam`; null switches it off."""
    gamma: float = number(1.0, at_least=0, at_most=1)
    """Discount per policy token, 0 .. 1."""
    lam: float = number(1.0, at_least=0, at_most=1)
    """Decay of the advantage estimate, 0 .. 1: 0 trusts the critic, 1 the rewards."""
    lam_returns: float | None = number(None, at_least=0, at_most=1)
    """Another lambda for the critic's targets A + V, 0 .. 1 (VAPO uses 1); null takes `lam`."""
    whiten: bool = False
    """Whiten the advantages over the tokens of the batch."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        valid, values = batch.mask > 0, on_mask(_values(batch), batch.mask)
        deltas = _deltas(batch.token_rewards, values, valid, batch.truncated, self.gamma)
        decay: Tensor | float = self.gamma * self.lam
        advantages = targets = discounted_sums(deltas, valid, decay)
        if self.adaptive_lambda is not None:
            lengths = valid.sum(dim=1).clamp(min=1).double()
            decay = self.gamma * (1.0 - 1.0 / (self.adaptive_lambda * lengths)).clamp(min=0.0)
            advantages = discounted_sums(deltas, valid, decay)
        if self.lam_returns is not None:
            targets = discounted_sums(deltas, valid, self.gamma * self.lam_returns)
        returns = on_mask(targets + values, valid)
        return AdvantageEstimate(
            advantages=whiten(advantages, batch.mask) if self.whiten else advantages, returns=returns
        )


@dataclass(frozen=True, kw_only=True)
class TurnGAE(Advantage):
    """Generalised advantage estimation with one step per turn, constant over the policy tokens of a turn.

    A truncated episode bootstraps from the value of its last turn.
    """

    formula: ClassVar[str] = (
        "GAE with one step per turn: V at the turn's first token, r summed over the turn, A broadcast over its tokens"
    )
    source: ClassVar[str] = "GAE, arXiv 1506.02438, on turns"
    needs_critic: ClassVar[bool] = True
    gamma: float = number(1.0, at_least=0, at_most=1)
    """Discount per turn, 0 .. 1."""
    lam: float = number(1.0, at_least=0, at_most=1)
    """Decay of the advantage estimate per turn, 0 .. 1."""
    whiten: bool = False
    """Whiten the advantages over the tokens of the batch."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        if batch.turn_ids is None:
            raise ConfigError("advantage 'gae_turn' needs turn_ids [batch, seq]")
        valid, values = batch.mask > 0, on_mask(_values(batch), batch.mask)
        turn_SL, first_SL = _turns(valid, batch.turn_ids)
        # Columns are turns from here: values of a row's K turns, padded on the right.
        shape = (turn_SL.shape[0], int(turn_SL.max()) + 1 if turn_SL.numel() else 1)
        rewards_SK = values.new_zeros(shape).scatter_add(1, turn_SL, batch.token_rewards)
        values_SK = values.new_zeros(shape).scatter_add(1, turn_SL, on_mask(values, first_SL))
        valid_SK = values.new_zeros(shape).scatter_add(1, turn_SL, first_SL.double()) > 0
        deltas = _deltas(rewards_SK, values_SK, valid_SK, batch.truncated, self.gamma)
        advantages_SK = discounted_sums(deltas, valid_SK, self.gamma * self.lam)
        advantages, returns = (
            on_mask(turns.gather(1, turn_SL), valid) for turns in (advantages_SK, advantages_SK + values_SK)
        )
        return AdvantageEstimate(
            advantages=whiten(advantages, batch.mask) if self.whiten else advantages, returns=returns
        )


def whiten(values: Tensor, mask: Tensor, *, unbiased: bool = True, eps: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the mask, 0 off it; all 0 for fewer than two values and for equal values."""
    chosen = values[mask > 0].double()
    if chosen.numel() < 2 or bool((chosen == chosen[0]).all()):
        return values.new_zeros(values.shape)
    variance = chosen.var(correction=1 if unbiased else 0)
    return on_mask((values.double() - chosen.mean()) * (variance + eps).rsqrt(), mask).to(values.dtype)


def place_rewards(rewards: Tensor, *, mask: Tensor) -> Tensor:
    """r_t = 1[t is the last policy token] R, [S, L] in the dtype of `rewards`; 0 where a sequence has no policy
    token."""
    valid = mask > 0
    remaining = valid.long().flip(1).cumsum(dim=1).flip(1)
    return rewards.unsqueeze(1).where(valid & (remaining == 1), 0.0)


def _values(batch: RewardBatch) -> Tensor:
    assert batch.values is not None, "the objective asks for them, see needs_critic"
    return batch.values


def _deltas(rewards: Tensor, values: Tensor, valid: Tensor, truncated: Tensor | None, gamma: float) -> Tensor:
    """r_t + gamma V_next - V_t of every valid column, where V_next is the value of the next valid column to the right.

    Example: valid columns 1 and 3 with values .2 and .5, rewards 0 and 1, gamma 1: the deltas there are .3 and .5; of a
    truncated row the second is 1, because V_next is .5.
    """
    import torch

    width = values.shape[1]
    bootstrap = values.new_zeros(values.shape[0])
    positions = torch.arange(width, device=values.device).expand_as(values)
    if truncated is not None and width:
        last = torch.where(valid, positions, -1).max(dim=1).values
        value = values.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1)
        bootstrap = torch.where(truncated.bool() & (last >= 0), value, 0.0)
    return rewards + gamma * _next_valid(values, valid, bootstrap) - values


def _next_valid(values: Tensor, valid: Tensor, beyond: Tensor) -> Tensor:
    """Of every column the value of the next valid column to the right; `beyond` [S] where there is none."""
    import torch

    width = values.shape[1]
    positions = torch.arange(width, device=values.device).expand_as(values)
    # Reverse running minimum: index of the nearest valid column at or after each column.
    nearest = torch.where(valid, positions, width).flip(1).cummin(dim=1).values.flip(1)
    following = torch.cat([nearest[:, 1:], torch.full_like(nearest[:, :1], width)], dim=1)
    return torch.cat([values, beyond.unsqueeze(1)], dim=1).gather(1, following)


def discounted_sums(increments: Tensor, valid: Tensor, decay: Tensor | float) -> Tensor:
    """x_t = increments_t + decay x_next from the last column to the first, skipping invalid columns, 0 there.

    decay: a number, one per row [S], or one per column [S, L].
    """
    import torch

    decay_LS = decay.t().contiguous() if isinstance(decay, torch.Tensor) and decay.dim() == 2 else None
    # One contiguous row per step: columns of a row-major tensor would touch every cache line of it each time.
    increments_LS, valid_LS = increments.t().contiguous(), valid.t().contiguous()
    result = torch.empty_like(increments_LS)
    state = increments.new_zeros(increments.shape[0])
    for t in range(increments_LS.shape[0] - 1, -1, -1):
        factor = decay if decay_LS is None else decay_LS[t]
        state = torch.where(valid_LS[t], increments_LS[t] + factor * state, state)
        result[t] = state
    return on_mask(result.t().contiguous(), valid)


def _turns(valid: Tensor, turn_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(turn of each policy token counted from 0, 0 off the mask; whether it is the first of its turn), both [S, L].

    Example: policy tokens in columns 1, 2, 4 with turn ids 7, 7, 8 have turns 0, 0, 1; columns 1 and 4 are first.
    """
    import torch

    positions = torch.arange(valid.shape[1], device=valid.device).expand_as(turn_ids)
    latest = torch.where(valid, positions, -1).cummax(dim=1).values
    previous = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    previous_turn = turn_ids.gather(1, previous.clamp(min=0))
    first = valid & ((previous < 0) | (previous_turn != turn_ids))
    return (first.long().cumsum(dim=1) - 1).masked_fill(~valid, 0), first


# ----------------------------------------------------------------------------------------------- reward shaping


def overlong_penalty(rewards: Tensor, lengths: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """R + clip((max_length - buffer - n) / buffer * factor, -factor, 0). Soft overlong punishment, DAPO, arXiv
    2503.14476.

    rewards: [S]. lengths: [S], n, policy tokens per answer. Nothing is taken up to max_length - buffer tokens, `factor`
    at max_length, and never more than `factor` beyond it.
    """
    if not 0 < buffer <= max_length:
        raise ConfigError(f"overlong penalty: buffer is {buffer}, expected 0 < buffer <= max_length {max_length}")
    if factor < 0:
        raise ConfigError(f"overlong penalty: factor is {factor}, expected >= 0 (it is subtracted)")
    import torch

    dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    excess = (max_length - buffer - lengths.to(dtype)) / buffer * factor
    return rewards.to(dtype) + excess.clamp(min=-factor, max=0.0)


def overlong_filter(mask: Tensor, truncated: Tensor) -> Tensor:
    """`mask` [S, L] with truncated sequences (bool [S]) removed: they train nothing, but still count in their group's
    baseline.
    """
    return mask.masked_fill(truncated.bool().unsqueeze(1), 0)
