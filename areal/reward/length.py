r"""Length: how long a completion is, against what is wanted. n is its length in tokens, characters or words.

shape: target     1 - |n - target| / target, at least 0. The length-controlled reward of L1 (Aggarwal and Welleck 2025,
                  arXiv:2503.04697), divided by the target. A column `target_length` goes before the option.

                      target 100:   n = 100 -> 1.0     n = 50 -> 0.5     n = 250 -> 0.0

shape: linear     0 up to max_length - buffer, then (max_length - buffer - n) / buffer, and -1 beyond max_length: the
                  soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 13).

                      max_length 100, buffer 20:   n = 80 -> 0.0     n = 90 -> -0.5     n = 101 -> -1.0

shape: cosine     low + (high - low) / 2 * (1 + cos(pi n / max_length)), from `high` at n = 0 to `low` at max_length; a
                  right answer is worth less, a wrong one costs less, the longer it is (Yeo et al. 2025,
                  arXiv:2502.03373). `correct` and `wrong` are the pairs [at 0, at max_length], `exceeded`
                  the score from max_length on. Which of them counts is decided by the reward `correct_by`.

                      correct [2, 1]:   n = 0 -> 2.0     n = max_length / 2 -> 1.5
                      wrong [-10, 0]:   n = 0 -> -10.0   n = max_length / 2 -> -5.0    exceeded -10

A length never says whether an answer is right: add it to a reward that does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, FaultError, FaultKind, load
from areal.reward.registry import REWARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SHAPES: Final = ("cosine", "linear", "target")
_UNITS: Final = ("characters", "tokens", "words")


class LengthReward:
    """Scores the length of a completion.

    shape, target, max_length, buffer, correct, wrong, exceeded: see above; lengths are in `unit`.
    correct_by: for `cosine`, the name or path of the reward that says whether an answer is right (at least 0.5); ""
        treats every answer as right.
    """

    def __init__(
        self,
        *,
        shape: str,
        unit: str = "tokens",
        target: int = 0,
        max_length: int = 0,
        buffer: int = 0,
        correct: Sequence[float] = (2.0, 1.0),
        wrong: Sequence[float] = (-10.0, 0.0),
        exceeded: float = -10.0,
        correct_by: str = "",
    ) -> None:
        if shape not in _SHAPES or unit not in _UNITS:
            raise ConfigError(
                f"reward 'length': shape is {shape!r} and unit {unit!r}, expected one of {', '.join(_SHAPES)} and one "
                f"of {', '.join(_UNITS)}"
            )
        if shape != "target" and max_length < 1:
            raise ConfigError(f"reward 'length': max_length is {max_length}, expected at least 1 for shape: {shape}")
        if shape == "linear" and not 1 <= buffer <= max_length:
            raise ConfigError(f"reward 'length': buffer is {buffer}, expected 1 to max_length ({max_length})")
        if shape == "cosine" and (len(correct) != 2 or len(wrong) != 2):
            raise ConfigError("reward 'length': correct and wrong are pairs [score at 0, score at max_length]")
        if target < 0:
            raise ConfigError(f"reward 'length': target is {target}, expected at least 1, or 0 to take it from the row")
        self._shape, self._unit, self._target = shape, unit, target
        self._max_length, self._buffer = max_length, buffer
        self._correct, self._wrong, self._exceeded = tuple(correct), tuple(wrong), exceeded
        judge = load("reward", correct_by, REWARDS) if correct_by else None
        self._judge: Callable[..., Any] | None = judge() if isinstance(judge, type) else judge

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
    ) -> float:
        """Return the score of one completion.

        Raises FaultError(DATA_INVALID) when `target` is neither an option nor in the row, and what `correct_by` raises.
        """
        units = {"tokens": completion_ids, "characters": completions, "words": completions.split()}
        length = len(units[self._unit])
        if self._shape == "target":
            target = data.get("target_length") or self._target
            if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target < math.inf:
                message = f"the row's target_length is {data.get('target_length')!r}, expected a number above 0"
                raise FaultError(FaultKind.DATA_INVALID, f"{message}, or an option `target`")
            return max(0.0, 1.0 - abs(length - target) / target)
        if self._shape == "linear":
            free = self._max_length - self._buffer
            return -1.0 if length > self._max_length else min(0.0, (free - length) / self._buffer)
        judge = self._judge
        right = judge is None or judge(prompt, completions, prompt_ids, completion_ids, **data) >= 0.5
        if length >= self._max_length:
            return self._exceeded
        high, low = self._correct if right else self._wrong
        return low + (high - low) / 2 * (1 + math.cos(math.pi * length / self._max_length))
