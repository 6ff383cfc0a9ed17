"""A real type whose rotations depend on two lists over layers and a number, and whose shared experts may be missing."""

from __future__ import annotations

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve

pytest.importorskip("transformers.models.cohere2_moe")
pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def report():
    return as_json(analyse(resolve("cohere2_moe")))


def test_every_value_that_the_class_has_by_default_is_proven(report):
    assert report["status"] == "proven"
    fixed = {use["name"] for use in report["fields"] if use["status"] == "fixed"}
    assert fixed == {"is_encoder_decoder", "rms_norm_eps"}


def test_a_pattern_that_another_list_would_explain_as_well_is_told_from_it(report):
    rotary = report["slots"]["layer.rotary"]
    assert (rotary["field"], rotary["value"]) == ("prefix_dense_sliding_window_pattern", 1)
    conditions = rotary["then"]["condition"]["conditions"]
    fields = {each.get("field") or each["condition"]["field"] for each in conditions}
    assert fields == {"layer_types", "mlp_layer_types"}
    assert rotary["otherwise"]["condition"]["field"] == "layer_types"


def test_parts_that_there_are_none_of_by_default_are_seen_with_all_their_settings(report):
    slots = report["slots"]
    assert report["tiny_config"]["num_shared_experts"] == 2
    assert slots["layer.feed_forward.shared"]["field"] == "num_shared_experts"
    assert slots["layer.feed_forward.shared.intermediate_size"]["powers"].keys() == {
        "intermediate_size",
        "num_shared_experts",
    }
    assert slots["layer.feed_forward.shared_scale"]["field"] == "shared_expert_combination_strategy"
    assert slots["layer.feed_forward.router.normalize"]["field"] == "expert_selection_fn"
