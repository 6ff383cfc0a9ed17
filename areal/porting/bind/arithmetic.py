"""Numbers computed from other numbers: products of powers, sums, powers of sums, with factors that are short."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import same
from areal.porting.family import Constant, Field, Power, Product, Sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.porting.family import Expression

POWERS: Final = (1.0, -1.0, 0.5, -0.5)
_ROUNDING: Final = 1e-9
_ROUGHLY: Final = 1e-5
"""More than `same` allows twice: no factor gives all targets where these are further from proportional."""


def arithmetic(columns: Mapping[str, Sequence[float]], targets: Sequence[float]) -> Expression | None:
    """Return the simplest computation that gives all targets. columns: field to its values, one for each target.

    Example: a head size of 16, 24 and 8 in configs with hidden_size 64, 96 and 64 and num_attention_heads 4, 4 and 8 is
    Product(1.0, (("hidden_size", 1.0), ("num_attention_heads", -1.0)), integer=True), written `hidden_size //
    num_attention_heads`. Code that computes `config.rope_theta * 2` gives targets 20000 and 14000 for rope_theta 10000
    and 7000: Product(2.0, (("rope_theta", 1.0),)). Gemma's embedding multiplier of 8.0 at hidden_size 64 and 9.798 at
    96 is Product(1.0, (("hidden_size", 0.5),)). What products cannot say is tried as a sum: 20 layers of 24 where 4 are
    dense is Sum((Field("num_layers"), Product(-1.0, (("num_dense", 1.0),)))).
    """
    varying = {name: values for name, values in columns.items() if len(set(values)) > 1}
    positive = {name: values for name, values in varying.items() if min(values) > 0}
    whole = all(isinstance(target, int) for target in targets)
    scaled: Expression | None = None  # hidden_size / num_heads is likelier than a quarter of hidden_size
    for size in (1, 2, 3):
        if scaled is not None and size == 3:
            break
        for names in itertools.combinations(positive, size):
            for powers in itertools.product(POWERS if size < 3 else POWERS[:2], repeat=size):
                found = _product(names, powers, [positive[name] for name in names], targets, whole)
                if found is not None and found.factor == 1:
                    return found
                scaled = scaled or found
    if scaled or (scaled := _sum(varying, targets)):
        return scaled
    for first, second in itertools.combinations(positive, 2):
        totals = [a + b for a, b in zip(positive[first], positive[second], strict=True)]
        for exponent in (-0.5, 0.5, -1.0):
            power = _product(("total",), (exponent,), (totals,), targets, whole=False)
            if power is not None:
                return Power(power.factor, Sum((Field(first), Field(second))), exponent)
    return _of_quotient(positive, targets)


def _of_quotient(columns: Mapping[str, Sequence[float]], targets: Sequence[float]) -> Power | None:
    """Return the power of a quotient that is rounded down: 1 / 24 for 97 channels of 4 heads."""
    whole = [name for name, values in columns.items() if all(isinstance(value, int) for value in values)]
    for over, under in itertools.permutations(whole, 2):
        quotients = [a // b for a, b in zip(columns[over], columns[under], strict=True)]
        for exponent in (-0.5, -1.0, 0.5) if min(quotients) > 0 else ():
            power = _product(("quotient",), (exponent,), (quotients,), targets, whole=False)
            if power is not None:
                return Power(power.factor, Product(1.0, ((over, 1.0), (under, -1.0)), integer=True), exponent)
    return None


def num_products(fields: int) -> int:
    """Return how many products `arithmetic` tries at most for so many fields."""
    return sum(math.comb(fields, size) * len(POWERS if size < 3 else POWERS[:2]) ** size for size in (1, 2, 3))


def is_number(value: Any) -> bool:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _product(
    names: Sequence[str],
    powers: Sequence[float],
    columns: Sequence[Sequence[float]],
    targets: Sequence[float],
    whole: bool,
) -> Product | None:
    """Return factor * fields to powers, if one factor does for all samples (for whole numbers: after rounding down)."""
    rounded = whole and set(powers) <= {1.0, -1.0}
    products: list[float] = []
    for row, target in zip(zip(*columns, strict=True), targets, strict=True):
        product = math.prod(map(pow, row, powers))
        products.append(product)
        # Nearly every product fails at the second config: what is exact is asked of the few that are left.
        proportional = math.isclose(product * targets[0], products[0] * target, rel_tol=_ROUGHLY)
        rounded = rounded and math.floor(product + _ROUNDING) == target
        if not proportional and not rounded:
            return None
    if len({round(product, 9) for product in products}) < 2:
        return None
    pairs = tuple(sorted(zip(names, powers, strict=True)))
    exact = _simple(targets[0] / products[0])
    if all(same(exact * product, target) for product, target in zip(products, targets, strict=True)):
        fraction = Fraction(exact).limit_denominator(16)
        is_plain = fraction.numerator <= 16 and math.isclose(fraction, exact, rel_tol=1e-9)
        # An odd factor such as 0.0883 is more likely chance than meaning: it has to explain one config more.
        needed = 2 if is_plain else 3
        return Product(exact, pairs, integer=whole) if len(set(products)) >= needed else None
    return Product(1.0, pairs, integer=True) if rounded and len(set(targets)) > 1 else None


def _sum(columns: Mapping[str, Sequence[float]], targets: Sequence[float]) -> Expression | None:
    """Return a field and a number, or two fields, each at most doubled or negated."""
    for name, column in columns.items():
        for factor in (1.0, -1.0, 2.0):
            rest = targets[0] - factor * column[0]
            if all(same(factor * value + rest, target) for value, target in zip(column, targets, strict=True)):
                return Sum((_scaled(name, factor), Constant(round(rest, 9) if isinstance(rest, float) else rest)))
    for first, second in itertools.combinations(columns, 2):
        for factors in itertools.product((1.0, -1.0, 2.0), repeat=2):
            totals = [factors[0] * a + factors[1] * b for a, b in zip(columns[first], columns[second], strict=True)]
            if all(map(same, totals, targets)):
                return Sum((_scaled(first, factors[0]), _scaled(second, factors[1])))
    return None


def _scaled(name: str, factor: float) -> Expression:
    return Field(name) if factor == 1 else Product(factor, ((name, 1.0),))


def _simple(number: float) -> float:
    """Return the short number that this one is, but for its last digits."""
    if not math.isfinite(number) or number == 0:
        return number
    fraction = Fraction(number).limit_denominator(64)
    if fraction and math.isclose(fraction, number, rel_tol=1e-6):
        return float(fraction)
    return float(f"{number:.7g}")
