"""A real type in which two fields together do what neither of them says alone."""

from __future__ import annotations

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve

pytest.importorskip("transformers.models.youtu")


@pytest.fixture(scope="module")
def report():
    return as_json(analyse(resolve("youtu")))


def test_a_bias_that_one_kind_of_projection_never_has_follows_from_both_fields(report):
    assert report["status"] == "proven"
    assert report["slots"]["layer.attention.query_bias"] == {
        "kind": "when_equal",
        "field": "q_lora_rank",
        "value": None,
        "then": {"kind": "constant", "value": False},
        "otherwise": {"kind": "field", "name": "attention_bias"},
    }


def test_configs_of_many_changes_are_variants(report):
    many = [variant for variant in report["variants"] if variant["name"].startswith("many changes")]
    assert len(many) == 2
    assert all(len(variant["overrides"]) > 2 and variant["parity"] <= variant["tolerance"] for variant in many)
