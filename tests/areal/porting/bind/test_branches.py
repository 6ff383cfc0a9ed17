"""Which further configs are looked at where a value was seen behind one value of another field only."""

from __future__ import annotations

import pytest

from areal.porting.bind.observing import Observation
from areal.porting.bind.predictions import branch_changes, joined_changes, uneven_heads
from areal.porting.bind.slots import LayerValues
from areal.porting.family import AtLeast, Constant, Field, Listed, PerLayer, Product, WhenEqual, WhenNull

BASE = {"width": 64, "inner": 96, "heads": 4, "linear": False, "eps": 1e-5}
CHOICES = {"width": [{"width": 128}], "inner": [{"inner": 192}, {"inner": None}], "heads": [{"heads": 8}]}


def looks(expressions, choices=CHOICES):
    return list(branch_changes({"hidden_size": Field("width"), "heads": Field("heads"), **expressions}, choices, BASE))


def test_a_number_that_stands_for_null_is_looked_at_with_every_other_size():
    assert looks({"size": WhenNull("inner", Constant(256))}) == [
        {"heads": 8, "inner": None},
        {"width": 128, "inner": None},
    ]


@pytest.mark.parametrize("number", [Constant(0.25), Product(2.0, (("width", -0.5),))])
def test_a_number_behind_a_flag_is_looked_at_with_every_other_size(number):
    found = looks({"scale": WhenEqual("linear", True, number, Constant(1.0))})
    assert {"width": 128, "linear": True} in found
    assert {"heads": 8, "linear": True} in found


def test_choices_between_texts_and_flags_need_no_further_look():
    assert looks({"block": WhenEqual("linear", True, Constant("parallel"), Constant("pre"))}) == []


def test_linear_biases_are_looked_at_with_slopes_that_are_no_powers_of_two():
    plain = Observation(BASE, {"layer.attention.alibi": LayerValues((False, False))}, {})
    biased = Observation(BASE, {"layer.attention.alibi": LayerValues((True, True))}, {"linear": True})
    heads = {"layer.attention.num_heads": Field("heads")}
    assert {"linear": True, "heads": 16} in list(uneven_heads(heads, [plain, biased]))
    assert list(uneven_heads(heads, [plain])) == []


def test_fields_that_are_read_where_layers_differ_are_looked_at_beside_other_lists():
    base = {**BASE, "kinds": ["near", "far", "near", "far"], "first": 2}
    kinds = [{"kinds": ["far", "near", "far", "near"]}, {"kinds": ["near"] * 4}]
    choices = {**CHOICES, "kinds": kinds, "first": [{"first": 1}], "linear": [{"linear": True}]}
    near, far = Listed("kinds", ("near",)), Constant(None)
    slots = {
        "layer.window": PerLayer(near, WhenEqual("linear", True, far, Constant(8)), far),
        "layer.feed_forward": PerLayer(AtLeast("first"), Constant("moe"), Constant("mlp")),
    }
    found = list(joined_changes(slots, choices, base))
    assert found == [{**switch, **each} for switch in ({"first": 1}, {"linear": True}) for each in kinds]
    assert list(joined_changes({"hidden_size": Field("width")}, choices, base)) == []


def test_two_fields_that_decide_the_same_slot_are_looked_at_together():
    choices = {**CHOICES, "linear": [{"linear": True}]}
    slots = {"layer.attention.scale": WhenEqual("linear", True, Field("inner"), Product(1.0, (("width", -0.5),)))}
    found = list(joined_changes(slots, choices, BASE))
    assert {"linear": True, "width": 128} in found
    assert {"inner": None, "width": 128} in found
    assert len(found) == 5
