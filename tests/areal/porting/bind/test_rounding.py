"""Sizes that are rounded up to a multiple are found, and what is proportional is not taken for one."""

from __future__ import annotations

import random

import pytest

from areal.porting.bind.arithmetic import arithmetic
from areal.porting.bind.expressions import evaluate
from areal.porting.bind.rounding import ceiling, narrowed, rounded_up
from areal.porting.family import Ceiling, Field, Narrowed, Power, Product, RoundedUp

TWO_THIRDS = Product(2 / 3, (("inner", 1.0),), integer=True)


def columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize(
    "truth",
    [RoundedUp(TWO_THIRDS, "by", "step"), RoundedUp(TWO_THIRDS, "", "step"), RoundedUp(Field("inner"), "by", "step")],
    ids=["factor and field", "factor", "field"],
)
def test_rounded_sizes_are_recovered(truth: RoundedUp) -> None:
    chance = random.Random(0)
    rows = [
        {"inner": chance.randint(50, 300), "by": chance.choice((0.7, 1.25, 1.9)), "step": chance.choice((8, 12, 16))}
        for _ in range(12)
    ]

    found = rounded_up(columns(rows), [evaluate(truth, row) for row in rows])

    assert found is not None
    for inner in range(40, 60):
        other = {"inner": inner, "by": 1.1, "step": 10}
        assert evaluate(found, other) == evaluate(truth, other)


def test_too_few_sizes_and_other_sizes_are_not_explained() -> None:
    rows = [{"inner": inner, "step": 8} for inner in (100, 200, 300, 301)]
    assert rounded_up(columns(rows), [104, 200, 304, 304]) == RoundedUp(Field("inner"), "", "step")
    assert rounded_up(columns(rows), [104, 104, 200, 200]) is None
    assert rounded_up(columns(rows), [104, 208, 304, 304]) is None
    assert rounded_up(columns(rows), [103, 200, 304, 304]) is None


def test_a_part_that_is_rounded_up_is_recovered() -> None:
    rows = [{"hidden": hidden, "other": 3} for hidden in (64, 96, 104, 130)]
    found = ceiling(columns(rows), [4, 6, 7, 9])
    assert found == Ceiling("hidden", 16)
    assert [evaluate(found, {"hidden": size}) for size in (1, 16, 17, 768)] == [1, 1, 2, 48]


def test_a_part_that_several_numbers_give_or_none_is_not_explained() -> None:
    rows = [{"hidden": hidden} for hidden in (33, 65, 129)]
    assert ceiling(columns(rows), [3, 5, 9]) is None  # 15 or 16
    assert ceiling(columns(rows), [3, 5, 10]) is None
    assert ceiling(columns([{"hidden": hidden} for hidden in (40, 50, 60)]), [2, 3, 4]) is None
    assert ceiling(columns([{"hidden": hidden} for hidden in (32, 64, 128)]), [2, 4, 8]) is None


def test_a_root_in_bfloat16_is_recovered_and_an_exact_one_is_none() -> None:
    sizes = columns([{"hidden": hidden, "heads": 4} for hidden in (128, 8, 64, 2560)])
    assert narrowed(sizes, [11.3125, 2.828125, 8.0, 50.5]) == Narrowed(Product(1.0, (("hidden", 0.5),)))
    assert narrowed(sizes, [hidden**0.5 for hidden in sizes["hidden"]]) is None
    assert narrowed(sizes, [8.0] * 4) is None


@pytest.mark.parametrize("exponent", [-1.0, -0.5])
def test_a_scale_of_a_head_size_that_was_rounded_down_is_told_from_a_quotient(exponent: float) -> None:
    fields = {"width": [96, 192, 97, 100], "heads": [4, 4, 4, 8]}
    sizes = [width // heads for width, heads in zip(fields["width"], fields["heads"], strict=True)]
    size = Product(1.0, (("width", 1.0), ("heads", -1.0)), integer=True)
    assert arithmetic(fields, [float(each) ** exponent for each in sizes]) == Power(1.0, size, exponent)
    even = {name: values[:2] for name, values in fields.items()}
    assert isinstance(arithmetic(even, [float(each) ** exponent for each in sizes[:2]]), Product)
