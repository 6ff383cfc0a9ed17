"""Every analysis ends: searches and looks are counted, and what was given up is named."""

from __future__ import annotations

import random

import pytest

from areal.porting.bind.analyse import analyse
from areal.porting.bind.budget import LOOKS, AnalysisBudget
from areal.porting.bind.expressions import to_json
from areal.porting.bind.fitting import fit
from areal.porting.bind.observing import SlotSample
from areal.porting.family import Field
from areal.porting.probe.subject import installed
from areal.porting.records import UnsupportedError

FIELDS = [f"field_{number}" for number in range(20)]


def noise(samples: int) -> list[SlotSample]:
    """What no expression explains: switches and sizes that have nothing to do with the value."""
    generator = random.Random(3)
    values = (None, True, False, 1, 2, 3, 8, "a", "b")
    return [
        SlotSample({name: generator.choice(values) for name in FIELDS}, generator.choice((1, 2, 4, 7)), 1)
        for _ in range(samples)
    ]


def test_a_search_that_costs_too_much_is_given_up_and_says_among_what() -> None:
    budget = AnalysisBudget(steps_of_a_fit=20_000)
    assert fit("router.groups", noise(60), FIELDS, budget=budget) is None
    assert budget.gave_up.keys() == {"router.groups"}
    assert all(name in budget.gave_up["router.groups"] for name in FIELDS)


def test_a_search_that_is_given_up_costs_the_same_each_time_and_little_more_than_it_may() -> None:
    left = []
    for _ in range(2):
        budget = AnalysisBudget(steps=100_000, steps_of_a_fit=20_000)
        fit("router.groups", noise(60), FIELDS, budget=budget)
        left.append(budget.steps)
    assert left[0] == left[1]
    assert 60_000 < left[0] < 80_000


def test_what_can_be_found_is_found_with_what_is_left() -> None:
    samples = [SlotSample({"width": width, "depth": 3}, width, 1) for width in (8, 16, 24)]
    budget = AnalysisBudget(steps=200)
    assert fit("size", samples, ["width", "depth"], budget=budget) == Field("width")
    assert not budget.gave_up


def test_samples_that_say_the_same_cost_nothing() -> None:
    few, many = AnalysisBudget(), AnalysisBudget()
    samples = noise(6)
    expected = fit("router.groups", samples, FIELDS, budget=few)
    found = fit("router.groups", [*samples, *samples * 9], FIELDS, budget=many)
    assert expected is not None
    assert to_json(expected) == to_json(found or Field(""))
    assert few.steps == many.steps


def test_all_searches_together_are_limited_and_the_refusal_names_the_last() -> None:
    budget = AnalysisBudget(steps=50_000, steps_of_a_fit=20_000)
    for slot in ("first", "second"):
        assert fit(slot, noise(60), FIELDS, budget=budget) is None
    with pytest.raises(UnsupportedError, match="field_7") as caught:
        fit("third", noise(60), FIELDS, budget=budget)
    assert caught.value.where == "third"


@pytest.mark.exhaustive
def test_an_analysis_that_would_look_at_too_many_configs_is_refused_naming_the_fields() -> None:
    found = analyse(installed("llama"), budget=AnalysisBudget(looks=12))
    assert found.status == "unsupported"
    assert found.missing[0]["feature"] == "more dependent config fields than the analysis looks at"
    assert found.missing[0]["where"].startswith("config.")
    assert found.missing[0]["where"].removeprefix("config.") in found.tiny_config


@pytest.mark.exhaustive
def test_an_ordinary_family_needs_a_small_part_of_what_it_may_cost() -> None:
    budget = AnalysisBudget()
    assert analyse(installed("llama"), budget=budget).status == "proven"
    assert not budget.gave_up
    assert LOOKS - budget.looks < LOOKS / 10
    assert budget.steps > AnalysisBudget().steps * 0.9
