"""Adds the scores of several rewards up, each with a weight.

    weighted_sum({"gsm8k": 1.0, "my_package.rewards:short": 0.2}, prompt, text, prompt_ids, text_ids, {"answer": "72"})
    -> 1.0 * gsm8k + 0.2 * short

Every part sees the same arguments and all columns of the row. A part that raises makes the whole raise: a sum without
one of its parts would be a wrong score, not a smaller one.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from areal.api import FaultError, FaultKind, RewardFunction, load
from areal.reward.registry import REWARDS

if TYPE_CHECKING:
    from collections.abc import Mapping


def weighted_sum(
    parts: Mapping[str, float],
    prompt: str,
    completions: str,
    prompt_ids: list[int],
    completion_ids: list[int],
    data: Mapping[str, Any],
    *,
    normalised: bool = False,
) -> float:
    """Return the sum of weight times score over `parts`: registry names or paths, with their weights.

    normalised: divide by the sum of the absolute weights, so that parts in [0, 1] give at most 1. Raises what a part
    raises, and FaultError(REWARD_INVALID) that names a part which returns no finite number.
    """
    total = 0.0
    for name, weight in parts.items():
        value = _part(name)(prompt, completions, prompt_ids, completion_ids, **data)
        if not math.isfinite(value):
            raise FaultError(FaultKind.REWARD_INVALID, f"part {name!r} returned {value!r}, expected a finite number")
        total += weight * float(value)
    return total / math.fsum(map(abs, parts.values())) if normalised else total


@functools.cache
def _part(name: str) -> RewardFunction:
    function: RewardFunction = load("reward", name, REWARDS)
    return function
