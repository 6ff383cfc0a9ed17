"""Warn when a step's rewards say nothing: all samples of every prompt got the same, so that no advantage is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.infra.metrics import names
from areal.infra.metrics.samples import component_means
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping


logger = getLogger(__name__)


class VarianceWatch:
    """Looks at the metrics of every step; warns at the 1st, 10th, 100th ... step without differences."""

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
        logger.warning(
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
