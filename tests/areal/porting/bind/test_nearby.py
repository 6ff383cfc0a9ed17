"""A wrong expectation is usually wrong about one slot: what is tried before anything is inferred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from areal.porting.bind import observing
from areal.porting.bind.accounting import SKIPPED
from areal.porting.bind.base_config import absent_value, with_undeclared
from areal.porting.bind.guessing import MOST, common_value, nearby
from areal.porting.bind.observing import Observation, Observer
from areal.porting.bind.slots import ABSENT, LayerValues, predict, slots_of
from areal.porting.bind.variations import MISSING
from areal.porting.family import Constant, Field
from areal.porting.probe.subject import installed
from areal.porting.probe.tiny import complete

if TYPE_CHECKING:
    from areal.porting.family import Expression
    from areal.porting.spec import ArchitectureSpec

BASE = {"biased": False, "experts": 2, "size": 40, "scalar": 16.0}
VALUES = {
    "output_bias": LayerValues([False, False]),
    "query_bias": LayerValues([False, False]),
    "scale": LayerValues([0.25, 0.25]),
    "shared": LayerValues([ABSENT, 80]),
    "windows": LayerValues([8, None]),
}
EXPRESSIONS: dict[str, Expression] = {
    "output_bias": Constant(False),
    "query_bias": Field("biased"),
    "scale": Constant(0.25),
    "shared": Constant(80),
    "windows": Constant(None),
}


def guesses(changes: dict[str, Any]) -> list[tuple[str, Expression]]:
    base = Observation(BASE, VALUES, {})
    found = [
        (slot, each[slot])
        for each in nearby(EXPRESSIONS, base, changes)
        for slot in each
        if each[slot] != EXPRESSIONS[slot]
    ]
    assert len(found) <= MOST
    return found


def test_slots_take_part_in_a_flag_or_leave_it() -> None:
    assert guesses({"biased": True}) == [("output_bias", Field("biased")), ("query_bias", Constant(False))]


def test_widths_grow_with_a_field_that_divides_them() -> None:
    assert guesses({"size": 60}) == [("shared", Constant(120))]
    assert ("shared", Constant(160)) in guesses({"experts": 4})


def test_factors_are_powers() -> None:
    assert guesses({"scalar": 64.0}) == [("scale", Constant(0.125))]


def test_nothing_is_guessed_of_several_changes_or_of_nulls() -> None:
    assert not guesses({"size": 60, "experts": 4})
    assert not guesses({"size": None})


def test_layers_that_differ_have_no_common_value() -> None:
    assert common_value(VALUES["windows"]) is ABSENT
    assert common_value(LayerValues([1, True])) is ABSENT
    assert common_value(VALUES["shared"]) == 80


@pytest.fixture(scope="module")
def granite() -> Observer:
    subject = installed("granite")
    return Observer(subject, with_undeclared(subject, complete(subject, {}), SKIPPED))


@pytest.mark.exhaustive
def test_a_guess_that_is_right_saves_the_inference(granite: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise AssertionError("inferred")

    def expected(multiplier: float) -> ArchitectureSpec:
        values = {**granite.values, "logit_multiplier": multiplier}
        assert slots_of(granite.inference.spec).keys() == values.keys()
        return predict({slot: Constant(common_value(value)) for slot, value in values.items()}, granite.base)

    monkeypatch.setattr(observing, "infer", fail)
    now = granite.base["logits_scaling"] * 2
    outcome = granite.observe(
        {"logits_scaling": now},
        lambda _: granite.inference.spec,
        nearby=[lambda _: expected(0.9), lambda _: expected(1 / now)],
    )
    assert (outcome.kind, outcome.inferred) == ("proven", True)
    assert outcome.values["logit_multiplier"] == pytest.approx(1 / now)


@pytest.mark.exhaustive
def test_what_an_absent_field_means_is_read_where_it_makes_no_difference(granite: Observer) -> None:
    heads, hidden = granite.base["num_attention_heads"], granite.base["hidden_size"]
    assert granite.base["head_dim"] != hidden // heads
    assert absent_value(granite, {"head_dim": MISSING}) == hidden // heads
    assert absent_value(granite, {"head_dim": MISSING, "hidden_size": 2 * hidden}) == 2 * hidden // heads


def test_a_field_that_no_module_keeps_is_not_read(granite: Observer) -> None:
    assert absent_value(granite, {"no_such_field": MISSING}) is None
