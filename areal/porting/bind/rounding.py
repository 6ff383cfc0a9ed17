"""Sizes that are rounded up: to a multiple of a field, as the width of a feed-forward layer, or a part of a field."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from areal.models.decoder_args import as_bfloat16
from areal.porting.family import Ceiling, Field, Narrowed, Product, RoundedUp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.porting.family import Expression

FACTORS: Final = (1.0, 2 / 3, 8 / 3, 4 / 3, 4.0, 2.0, 0.5)
"""Of the size before it is rounded: gated layers take two thirds of a plain layer's width."""
_ROUNDING: Final = 1e-9
_DISTINCT: Final = 3
"""Values that have to be explained: rounding makes many sizes equal, so fewer say little."""


def ceiling(columns: Mapping[str, Sequence[float]], targets: Sequence[float]) -> Ceiling | None:
    """Return the field over a whole number that gives all targets when it is rounded up; None where several numbers do,
    or rounding down would do as well.

    Example: mamba computes ceil(hidden_size / 16) where time_step_rank is "auto": 6, 7 and 4 for 96, 104 and 64.
    """
    if len(set(targets)) < _DISTINCT or not all(isinstance(target, int) and target > 0 for target in targets):
        return None
    for name, values in columns.items():
        if not all(isinstance(value, int) and value > 0 for value in values):
            continue
        pairs = list(zip(values, targets, strict=True))
        low = max(-(-value // target) for value, target in pairs)
        high = min((value - 1) // (target - 1) for value, target in pairs if target > 1)
        if low == high > 1 and any(value % low for value in values):
            return Ceiling(name, int(low))
    return None


def narrowed(columns: Mapping[str, Sequence[float]], targets: Sequence[float]) -> Narrowed | None:
    """Return the square root of a field in bfloat16 that gives all targets.

    Example: recurrent_gemma multiplies embeddings by 11.3125, 2.828125 and 8 for a hidden_size of 128, 8 and 64.
    """
    if len(set(targets)) > 1 and any(as_bfloat16(target) == target for target in targets):
        for name, values in columns.items():
            if min(values) > 0 and [as_bfloat16(value**0.5) for value in values] == list(targets):
                return Narrowed(Product(1.0, ((name, 0.5),)))
    return None


def rounded_up(columns: Mapping[str, Sequence[float]], targets: Sequence[float]) -> Expression | None:
    """Return the rounded size that gives all targets. columns: field to its values, one for each target.

    Example: lfm2 computes int(2 * intermediate_size / 3), then int(multiplier * that), and takes the next multiple of
    block_multiple_of: 112 is 74, 111, and 112 with a multiplier of 1.5 and multiples of 8.
    """
    if len(set(targets)) < _DISTINCT or not all(isinstance(target, int) for target in targets):
        return None
    positive = {name: values for name, values in columns.items() if min(values) > 0}
    for multiple, base, scale, factor in candidates(positive, targets):
        sizes = [math.floor(value * factor + _ROUNDING) for value in positive[base]]
        if scale:
            sizes = [math.floor(size * by + _ROUNDING) for size, by in zip(sizes, positive[scale], strict=True)]
        steps = positive[multiple]
        if all(-(-size // step) * step == target for size, step, target in zip(sizes, steps, targets, strict=True)):
            inner = Field(base) if factor == 1.0 else Product(factor, ((base, 1.0),), integer=True)
            return RoundedUp(inner, scale, multiple)
    return None


def candidates(
    columns: Mapping[str, Sequence[float]], targets: Sequence[float]
) -> Iterator[tuple[str, str, str, float]]:
    """Yield the field of the multiple, the field that is rounded, the one that scales it ("": none), and the factor."""
    whole = [name for name, values in columns.items() if all(isinstance(value, int) for value in values)]
    for multiple in whole:
        if any(target % step for target, step in zip(targets, columns[multiple], strict=True)):
            continue
        others = [name for name in columns if name != multiple]
        for base, factor in itertools.product(whole, FACTORS):
            if base != multiple:
                yield from ((multiple, base, scale, factor) for scale in ("", *others) if scale != base)
