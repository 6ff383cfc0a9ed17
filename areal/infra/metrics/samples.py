"""Metrics of samples: what each reward component gave them, and what was recorded while they were produced; and a
warning when a step's rewards say nothing.

Denominators are samples: a component is averaged over the samples that have it, a recorded name over those that
recorded it, and a sample that became several trajectories counts what it recorded once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from areal.infra.metrics import names
from areal.utils import stats
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from areal.api import RewardUse, Trajectory

_logger = getLogger(__name__)


def sample_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return `reward/<component>/mean` and `/std`, and `stats/<name>` with `/count`, `/min` and `/max`."""
    samples = {(item.group_id, item.sample_index): item.stats for item in trajectories}
    return component_metrics([item.reward_components for item in trajectories]) | stats_metrics(samples.values())


def component_metrics(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return `reward/<component>/mean` and `/std` over the samples that have the component."""
    columns: dict[str, list[float]] = {}
    for components in samples:
        for name, value in components.items():
            columns.setdefault(name, []).append(value)
    found: dict[str, float] = {}
    for name in sorted(columns):
        values = columns[name]
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        found[f"{names.COMPONENT_PREFIX}{name}/mean"] = mean
        found[f"{names.COMPONENT_PREFIX}{name}/std"] = deviation
    return found


def stats_metrics(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return `stats/<name>` with `/count`, `/min` and `/max` over the samples that recorded the name."""
    return {f"{names.STATS_PREFIX}{name}": value for name, value in stats.reduce(samples).items()}


def use_metrics(uses: Mapping[str, RewardUse]) -> dict[str, float]:
    """Return `reward/<component>/failures`, and `/seconds` per call."""
    found: dict[str, float] = {}
    for name, use in sorted(uses.items()):
        found[f"{names.COMPONENT_PREFIX}{name}/failures"] = float(use.failures)
        found[f"{names.COMPONENT_PREFIX}{name}/seconds"] = use.seconds / use.calls
    return found


def reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return mean, deviation, minimum and maximum of the rewards of a step."""
    rewards = [item.total_reward for item in trajectories]
    mean = math.fsum(rewards) / len(rewards)
    return {
        names.REWARD_MEAN: mean,
        names.REWARD_STD: math.sqrt(math.fsum((value - mean) ** 2 for value in rewards) / len(rewards)),
        names.REWARD_MIN: min(rewards),
        names.REWARD_MAX: max(rewards),
    }


def recorded_metrics(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the metrics of what was recorded outside of samples, as by a loader of rows: one value each."""
    return stats_metrics({name: value} for name, numbers in values.items() for value in numbers)


def component_means(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the mean of each component by its name, from the metrics of a step."""
    start, end = names.COMPONENT_PREFIX, "/mean"
    return {
        name[len(start) : -len(end)]: value
        for name, value in metrics.items()
        if name.startswith(start) and name.endswith(end) and len(name) > len(start) + len(end)
    }


class VarianceWatch:
    """Looks at the metrics of every step; warns at the 1st, 10th, 100th ... step in which all samples of every prompt
    got the same reward, so that no advantage is left.
    """

    def __init__(self, *, compares_groups: bool) -> None:
        """compares_groups: whether the advantage is the difference to other samples of the prompt; if it is not, only
        steps whose rewards are all the same say nothing.
        """
        self._compares_groups = compares_groups
        self._steps = 0
        self._next = 1

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a step."""
        low, high = metrics.get(names.REWARD_MIN, 0.0), metrics.get(names.REWARD_MAX, 1.0)
        # Without a share, no group has two samples.
        equal = metrics.get(names.ZERO_VARIANCE_SHARE, 1.0) == 1.0
        if not equal or (low != high and not self._compares_groups):
            return
        self._steps += 1
        if self._steps < self._next:
            return
        self._next *= 10
        _logger.warning(
            "step %d: in every group all samples have the same reward, so nothing was learnt from it (%s; %s so far; "
            "metric %s). Read what was sampled (areal report RUN), take easier or harder rows, or raise "
            "rollout.group_size",
            step,
            _reason(low, high, metrics),
            "the first such step" if self._steps == 1 else f"{self._steps} such steps",
            names.ZERO_VARIANCE_SHARE,
        )


def _reason(low: float, high: float, metrics: Mapping[str, float]) -> str:
    if names.ZERO_VARIANCE_SHARE not in metrics:
        return "groups have one sample, which leaves nothing to compare it with"
    if low != high:
        return f"groups differ from each other, from {low:g} to {high:g}: prompts are solved always or never"
    stds = {name: metrics.get(f"{names.COMPONENT_PREFIX}{name}/std") for name in component_means(metrics)}
    constant = [f"{name} {value:g}" for name, value in component_means(metrics).items() if stds[name] == 0.0]
    parts = f", components: {', '.join(constant)}" if len(constant) > 1 else ""
    return f"the reward is the constant {low:g}{parts}"
