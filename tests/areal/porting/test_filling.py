"""Nulls that modeling code fills."""

from __future__ import annotations

import json

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.bind.reading import filling_rules
from areal.porting.family import Constant, Field, Product, WhenNull
from areal.porting.probe.subject import resolve

QUOTIENT = Product(1.0, (("hidden_size", 1.0), ("num_attention_heads", -1.0)), integer=True)


def test_a_head_size_that_the_attention_derives_becomes_a_rule() -> None:
    report = as_json(analyse(resolve("mixtral")))
    use = next(use for use in report["fields"] if use["name"] == "head_dim")
    powers = {"hidden_size": 1.0, "num_attention_heads": -1.0}
    assert use["default_rule"] == {"kind": "product", "factor": 1.0, "powers": powers, "integer": True}
    assert report["slots"]["layer.attention.head_dim"] == {"kind": "field", "name": "head_dim"}
    assert "null" not in json.dumps(report["slots"]["layer.attention.scale"])


def test_slots_that_fill_a_null_in_different_ways_make_no_rule() -> None:
    agreed = {"a": WhenNull("size", QUOTIENT), "b": WhenNull("size", QUOTIENT)}
    assert filling_rules(agreed, {}) == {"size": QUOTIENT}
    assert filling_rules(agreed, {"size": QUOTIENT}) == {}
    assert filling_rules({**agreed, "c": WhenNull("size", Field("hidden_size"))}, {}) == {}
    assert filling_rules({"a": WhenNull("size", Constant(None))}, {}) == {}
