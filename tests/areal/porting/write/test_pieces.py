"""What the generated tests of a family run."""

from __future__ import annotations

from ast import literal_eval

import pytest

from areal.porting.bind.expressions import to_json
from areal.porting.family import Constant, Field, FieldUse, Length, Listed, PerLayer
from areal.porting.write.fields import plan_fields
from areal.porting.write.pieces import checks

KINDS = ("attention", "mamba")


@pytest.mark.parametrize("counted", [False, True])
def test_a_list_over_layers_is_refused_by_its_length_only_where_something_else_counts_them(counted: bool) -> None:
    uses = [FieldUse(name="kinds", type="list", status="used", required=True, allowed=KINDS, example=list(KINDS))]
    if not counted:
        uses.append(FieldUse(name="depth", type="int", status="used", required=True, example=2))
    depth = Length("kinds") if counted else Field("depth")
    slots = {
        "num_layers": depth,
        "layer.attention": PerLayer(Listed("kinds", ("mamba",)), Constant("mamba"), Constant("attention")),
    }
    report = {
        "model_type": "aster",
        "tiny_config": {"kinds": list(KINDS), "depth": 2},
        "variants": [],
        "slots": {name: to_json(node) for name, node in slots.items()},
    }

    refused = {
        literal_eval(name): literal_eval(value)
        for name, value in checks(report, uses, plan_fields(slots, uses))["refused"]
    }

    values = refused["kinds"]
    assert (len(values) == 1) is not counted
    assert all(value in KINDS for value in values) is not counted
