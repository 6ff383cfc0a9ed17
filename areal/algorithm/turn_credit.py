"""Estimators that give each turn its own credit, without a critic.

A turn is what the policy sampled between two observations; its number is its entry in `turn_ids`. Its reward is the sum
of `token_rewards` over its tokens; the outcome of the sample is on the last turn of every sequence. Both estimators
spread one number over the policy tokens of a turn, and neither divides by a deviation: `turn_return` stays unbiased,
since its baseline does not depend on what the sample itself did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from areal.algorithm.advantages import Advantage, AdvantageEstimate, RewardBatch, discounted_sums, place_rewards
from areal.algorithm.groups import GroupStatistics
from areal.algorithm.tokens import on_mask
from areal.api import ConfigError, DataError, number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TurnReturn(Advantage):
    """Discounted return from a turn on, above that of the group's other samples at the same turn.

    For a sample with fewer turns the baseline takes the return of its last one; for one that branched, the mean
    over its sequences that have begun by that turn. A group of one has advantage 0.
    """

    formula: ClassVar[str] = (
        "G_k = sum_j>=k gamma^(j-k) r_j over turns; A = G_k - mean(G_k of the other samples of the group, their last "
        "one where they have fewer turns)"
    )
    source: ClassVar[str] = "reward to go with a leave-one-out baseline (RLOO, arXiv 2402.14740), per turn"
    needs_group: ClassVar[bool] = True
    gamma: float = number(1.0, at_least=0, at_most=1)
    """Discount per turn, 0 .. 1."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        import torch

        turns_SL = _turn_numbers(batch, "turn_return")
        rewards_SK, sampled_SK = _by_turn(batch.token_rewards, turns_SL, batch.mask)
        positions_K = torch.arange(rewards_SK.shape[1], device=rewards_SK.device)
        last_S1 = torch.where(sampled_SK, positions_K, -1).max(dim=1, keepdim=True).values
        first_S1 = torch.where(sampled_SK, positions_K, rewards_SK.shape[1]).min(dim=1, keepdim=True).values
        returns_SK = discounted_sums(rewards_SK, positions_K <= last_S1, self.gamma)
        # Beyond its last turn a sequence stands with the return of that turn.
        returns_SK = returns_SK.gather(1, torch.minimum(positions_K.expand_as(returns_SK), last_S1.clamp(min=0)))
        begun_SK = positions_K >= first_S1
        statistics = GroupStatistics.of(batch.rewards, batch.groups, batch.samples)
        advantages_SK = torch.zeros_like(returns_SK)
        for group in range(statistics.number):
            rows = (statistics.index == group).nonzero().flatten()
            samples = statistics.sample_index[rows]
            advantages_SK[rows] = _above_others(returns_SK[rows], begun_SK[rows], samples)
        return AdvantageEstimate(advantages=on_mask(advantages_SK.gather(1, turns_SL), batch.mask))


@dataclass(frozen=True, kw_only=True)
class OutcomePlusTurn(Advantage):
    """Outcome above the group's mean, plus the turn's own reward above that of all turns of the group."""

    formula: ClassVar[str] = (
        "A = (R - mean(R in group)) + turn_weight (r_k - mean(r over all turns of the group)); R the outcome, r_k what "
        "turn k got beside it"
    )
    source: ClassVar[str] = "Dr.GRPO, arXiv 2503.20783, on outcomes and on turns"
    needs_group: ClassVar[bool] = True
    turn_weight: float = number(1.0, at_least=0)
    """Weight of the turn's own part; >= 0."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step."""
        turns_SL = _turn_numbers(batch, "outcome_plus_turn")
        outcomes = GroupStatistics.of(batch.outcomes, batch.groups, batch.samples)
        beside_SL = batch.token_rewards - place_rewards(batch.outcomes, mask=batch.mask)
        rewards_SK, sampled_SK = _by_turn(beside_SL, turns_SL, batch.mask)
        rows, _ = sampled_SK.nonzero(as_tuple=True)
        own_SK = rewards_SK.clone()
        own_SK[sampled_SK] = GroupStatistics.of(rewards_SK[sampled_SK], batch.groups[rows]).centred
        # Turns of one sample alone are not compared with each other: a group of one has no baseline.
        own_SK = own_SK.masked_fill((outcomes.size == 1).unsqueeze(1), 0.0)
        per_token = on_mask(own_SK.gather(1, turns_SL), batch.mask)
        return AdvantageEstimate(advantages=batch.on_tokens(outcomes.centred) + self.turn_weight * per_token)


def _turn_numbers(batch: RewardBatch, name: str) -> Tensor:
    """Turn of every policy token, 0 off the mask, int64 [S, L]."""
    if batch.turn_ids is None:
        raise ConfigError(f"advantage {name!r} needs turn_ids [batch, seq]")
    valid = batch.mask > 0
    if bool((batch.turn_ids[valid] < 0).any()):
        raise DataError(f"advantage {name!r}: turn_ids has policy tokens without a turn, expected numbers from 0")
    return batch.turn_ids.masked_fill(~valid, 0)


def _by_turn(values_SL: Tensor, turns_SL: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of values over each turn, whether anything was sampled in it), both [S, K] for turns 0 .. K - 1.

    values_SL: 0 off the mask.
    """
    width = int(turns_SL.max()) + 1 if turns_SL.numel() else 1
    shape = (turns_SL.shape[0], width)
    sums = values_SL.new_zeros(shape).scatter_add(1, turns_SL, values_SL)
    sampled = values_SL.new_zeros(shape).scatter_add(1, turns_SL, (mask > 0).to(values_SL.dtype))
    return sums, sampled > 0


def _above_others(returns_NK: Tensor, begun_NK: Tensor, samples_N: Tensor) -> Tensor:
    """Return of each turn of the N sequences of one group above the mean of the group's other samples, [N, K]; 0 where
    there is no other.
    """
    import torch

    samples, own_N = torch.unique(samples_N, return_inverse=True)
    shape = (samples.numel(), returns_NK.shape[1])
    begun = begun_NK.to(returns_NK.dtype)
    count_MK = begun.new_zeros(shape).index_add(0, own_N, begun)
    value_MK = begun.new_zeros(shape).index_add(0, own_N, returns_NK * begun) / count_MK.clamp(min=1.0)
    result = torch.zeros_like(returns_NK)
    for index, own in enumerate(own_N.tolist()):
        others = count_MK > 0
        others[own] = False
        # Differences first: equal returns give exactly 0.
        differences = on_mask(returns_NK[index] - value_MK, others)
        result[index] = differences.sum(dim=0) / others.sum(dim=0).clamp(min=1)
    return result
