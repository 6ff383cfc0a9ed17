"""Infinite numbers go to JSON and back in the form that transformers writes."""

import json
import math

import pytest
from transformers import PreTrainedConfig

from areal.utils.special_numbers import tagged, untagged

VALUES = {"limits": (0.0, math.inf), "inner": {"low": -math.inf, "names": ["Infinity", None, True]}, "size": 8}


def test_values_survive_strict_json():
    text = json.dumps(tagged(VALUES), allow_nan=False)
    assert untagged(json.loads(text)) == {**VALUES, "limits": [0.0, math.inf]}


def test_the_form_is_that_of_transformers():
    written = json.loads(PreTrainedConfig(**VALUES).to_json_string())
    assert written["limits"] == tagged(VALUES)["limits"]
    assert untagged(written)["inner"] == VALUES["inner"]


def test_what_is_no_number_is_missed_by_both():
    assert math.isnan(untagged(tagged([math.nan]))[0])


@pytest.mark.parametrize("other", [{"__float__": "Infinity", "more": 1}, {"__float__": "huge"}, {"__float__": 1}])
def test_other_objects_stay(other):
    assert untagged(other) == other


def test_a_bare_infinity_of_older_files_is_a_number_as_well():
    assert untagged(json.loads('{"limits": [0.0, Infinity]}')) == {"limits": [0.0, math.inf]}
