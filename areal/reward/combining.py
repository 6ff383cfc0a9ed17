"""Add the values of several rewards up: weights, normalisation of each before it is weighted, and what it is based on.

Pure functions on numbers. With components k of weight w_k and value r_k(i) of sample i, the score is

    s(i) = sum_k w_k r_k(i)                    no normalisation, the default
    s(i) = sum_k w_k (r_k(i) - m_k) / d_k      m_k, d_k: mean and standard deviation (n - 1) of r_k over the samples of
                                               i's prompt ("group") or of the whole batch ("batch")

so that a component counts by its weight, whatever its scale and however rarely it differs: of a sum of raw rewards, the
group's deviation is that of the component that varies most, and different combinations of values that happen to have
equal sums become equal. Normalising each reward in its group is the first step of GDPO (arXiv 2601.05242);
its second, whitening the sum over the batch, is `objective.advantage: reinforce_pp_baseline`. `drgrpo` leaves the sum
as it is.

A value that does not differ among its samples, or has no others to differ from, becomes 0. Samples that were lost to
faults are not there: means and deviations are those of the survivors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from areal.api import UsageError
from areal.reward.components import weighted_sum

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from areal.api import Trajectory
    from areal.reward.components import RewardComponent

_TOLERANCE = 1e-9


def standardised(values: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Return (value - mean) / deviation within each group; 0 in a group of one, or of equal values."""
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    found = [0.0] * len(values)
    for indices in members.values():
        own = [values[index] for index in indices]
        if min(own) == max(own):
            continue
        mean = math.fsum(own) / len(own)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in own) / (len(own) - 1))
        for index in indices:
            found[index] = (values[index] - mean) / deviation
    return found


def with_normalised_rewards(
    components: Sequence[RewardComponent], trajectories: Sequence[Trajectory]
) -> Sequence[Trajectory]:
    """Return the trajectories of one batch with the scores to train on.

    Raises UsageError when a sample's reward is not the weighted sum of its components: a workflow that changes the
    score, by a discount for instance, leaves open what is to be normalised.
    """
    if all(component.normalize == "none" for component in components):
        return trajectories
    for item in trajectories:
        _require_sum(components, item)
    groups = [item.group_id for item in trajectories]
    terms = []
    for component in components:
        values = [item.reward_components[component.name] for item in trajectories]
        if component.normalize != "none":
            values = standardised(values, groups if component.normalize == "group" else [0] * len(values))
        terms.append([component.weight * value for value in values])
    scores = (math.fsum(column) for column in zip(*terms, strict=True))
    return [replace(item, reward=score) for item, score in zip(trajectories, scores, strict=True)]


def _require_sum(components: Sequence[RewardComponent], item: Trajectory) -> None:
    missing = [component.name for component in components if component.name not in item.reward_components]
    what = f"no value of {', '.join(missing)}" if missing else ""
    if not missing:
        total = weighted_sum(components, item.reward_components)
        if abs(total - item.reward) > _TOLERANCE * max(1.0, abs(total)):
            what = f"the reward {item.reward:g}, and its components add up to {total:g}"
    if what:
        workflow = item.provenance.workflow or "the workflow"
        raise UsageError(
            f"reward: normalize needs samples whose reward is the weighted sum of the components, but sample "
            f"{item.sample_index} of prompt {item.group_id} has {what}: {workflow} changes the score",
            where="reward",
            fix=f"set normalize: none, or let {workflow} pass the score on as it is (turn_discount: 1.0)",
        )
