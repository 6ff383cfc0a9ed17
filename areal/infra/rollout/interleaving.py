"""Take turns by weight. Pure functions on whole numbers: no clocks, no randomness, no rounding.

`next_turn` solves the chairman assignment problem (R. Tijdeman, Discrete Mathematics 32, 1980): of k weights that add
up to 1, after every n turns each i has had c_i of them with

    | c_i - n * w_i |  <=  1 - 1 / (2k - 2)

which no rule can improve for all weights. Turn n goes to the i whose lead would otherwise fall below that bound first,
among those that may take a turn without exceeding it. Random draws are off by about sqrt(n) instead.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import gcd, lcm
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: the multiples fill the circle as evenly as multiples of one number can."""
_CIRCLE: Final = 1 << 64


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the smallest whole numbers in the same ratio as `weights` are written: [0.7, 0.3] is (7, 3)."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    scale = lcm(*(value.denominator for value in exact))
    numbers = [int(value * scale) for value in exact]
    divisor = gcd(*numbers)
    return tuple(number // divisor for number in numbers)


def next_turn(weights: Sequence[int], taken: Sequence[int]) -> int:
    """Return whose turn is next, after `taken` turns of each. weights: whole numbers above 0."""
    if len(weights) == 1:
        return 0
    total, turn = sum(weights), sum(taken) + 1
    # All in units of 1 / (total * parts).
    parts = 2 * len(weights) - 2
    leads = [parts * (weight * turn - had * total) for weight, had in zip(weights, taken, strict=True)]
    eligible = [index for index, lead in enumerate(leads) if lead >= total]
    bound = (parts - 1) * total
    return min(eligible, key=lambda index: (Fraction(bound - leads[index], weights[index]), index))


def falls_on(share: float, number: int) -> bool:
    """Whether turn `number` (from 0) is one of those that `share` of all turns are, evenly spread."""
    exact = _exact(share)
    return (number + 1) * exact // 1 > number * exact // 1


def spread_choice(weights: Sequence[float], number: int, *, offset: int) -> int:
    """Return the index that turn `number` falls to, by weights that may be others in each turn; some are above 0.

    Turns are spread by multiples of the golden ratio, so that shares are met within about log(n) turns and not sqrt(n).
    offset: where the sequence begins.
    """
    exact = [_exact(weight) for weight in weights]
    point = sum(exact) * Fraction((offset + number * _GOLDEN) % _CIRCLE, _CIRCLE)
    reached = Fraction(0)
    for index, weight in enumerate(exact):
        reached += weight
        if point < reached:
            return index
    raise AssertionError("no weight is above 0")


@cache
def _exact(value: float) -> Fraction:
    return Fraction(repr(float(value)))
