"""Statistics of rewards inside groups, over samples: a sample that branched into several sequences counts once.

Counting sequences instead would let a policy move its baseline by branching, since long or forked episodes would be
heard several times. Statistics run in float64. Importing this module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Statistics of one number per sequence, each spread back over the sequences: [S], float64."""

    size: Tensor
    """Samples in the group of each sequence."""
    mean: Tensor
    constant: Tensor
    """bool [S]: the sample's group has one member or equal rewards, so there is nothing to learn from it."""
    centred: Tensor
    """R - mean of the group, exactly 0 in constant groups: a rounding error of the mean must not be divided by its own
    standard deviation."""
    index: Tensor
    """int64 [S], dense group number from 0."""
    number: int
    sample_index: Tensor
    """int64 [S], dense sample number from 0."""
    share: Tensor | None
    """1 / (sequences of the sample), so that sums over them count it once; None when each sequence is a sample."""

    @classmethod
    def of(cls, rewards: Tensor, groups: Tensor, samples: Tensor | None = None) -> GroupStatistics:
        """Compute the statistics of a step.

        rewards: float64 [S]. groups: int [S]. samples: int [S], equal for the sequences of one sample; None when each
        is one.
        """
        import torch

        unique, index = torch.unique(groups, return_inverse=True)
        number = int(unique.numel())
        share = None
        if samples is None:
            sample_index = torch.arange(rewards.shape[0], device=rewards.device)
            size = torch.bincount(index, minlength=number).to(rewards.dtype)
        else:
            _, sample_index, sequences = torch.unique(samples, return_inverse=True, return_counts=True)
            share = 1.0 / sequences[sample_index].to(rewards.dtype)
            members = torch.unique(torch.stack([index, sample_index]), dim=1)[0]
            size = torch.bincount(members, minlength=number).to(rewards.dtype)
        counted = rewards if share is None else rewards * share
        mean = rewards.new_zeros(number).index_add(0, index, counted) / size
        highest = rewards.new_full((number,), -torch.inf).scatter_reduce(0, index, rewards, "amax")
        lowest = rewards.new_full((number,), torch.inf).scatter_reduce(0, index, rewards, "amin")
        # One sample is compared with nothing, even where a workflow gave its sequences different rewards.
        constant = ((highest == lowest) | (size == 1))[index]
        return cls(
            size=size[index],
            mean=mean[index],
            constant=constant,
            centred=(rewards - mean[index]).masked_fill(constant, 0.0),
            index=index,
            number=number,
            sample_index=sample_index,
            share=share,
        )

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all sequences of each group, spread back over them."""
        return values.new_zeros(self.number).index_add(0, self.index, values)[self.index]

    def std(self, rewards: Tensor, *, unbiased: bool) -> Tensor:
        """Return the standard deviation over the samples of each group; 0 for groups of one."""
        squares = (rewards - self.mean) ** 2
        squares = self.sum(squares if self.share is None else squares * self.share)
        return (squares / (self.size - 1 if unbiased else self.size).clamp(min=1.0)).sqrt()

    def sample_means(self, values: Tensor) -> Tensor:
        """Mean over the sequences of each sample, by its dense number; `values` itself when each sequence is one."""
        if self.share is None:
            return values
        number = int(self.sample_index.max()) + 1 if self.sample_index.numel() else 0
        return values.new_zeros(number).index_add(0, self.sample_index, values * self.share)


def sums_of_samples(values: Tensor, samples: Tensor | None) -> Tensor:
    """Sum of one number per sequence over the sequences of its sample, spread back over them: [S], in the dtype of
    `values`.
    """
    import torch

    if samples is None:
        return values
    unique, index = torch.unique(samples, return_inverse=True)
    return values.new_zeros(unique.numel()).index_add(0, index, values)[index]
