"""Tiny configs with more of an architecture in sight."""

from __future__ import annotations

import pytest

from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete, crossed, with_listed_layers, with_parts, without_parts

NONE = frozenset()
ALIKE = {"kinds": ["a", "b", "a", "b"], "parts": ["x", "y", "x", "y"], "sizes": [1, 2, 1, 2]}


def test_lists_over_layers_do_not_change_in_step():
    found = crossed(ALIKE, given=NONE, works=lambda config: True)
    assert found == {**ALIKE, "parts": ["x", "x", "y", "y"]}
    assert len(set(zip(found["kinds"], found["parts"], strict=True))) == 4


@pytest.mark.parametrize("given", [frozenset({"parts"}), NONE])
def test_lists_stay_where_they_were_given_or_nothing_else_works(given):
    assert crossed(ALIKE, given=given, works=lambda config: bool(given)) == ALIKE


def test_parts_that_there_are_none_of_by_default_are_added_and_taken_away_again():
    subject = resolve("granitemoeshared")
    defaults = {"shared_intermediate_size": 0, "num_hidden_layers": 4}
    config = {**complete(subject, {"shared_intermediate_size": 0}), "shared_intermediate_size": 0}
    found = with_parts(subject, config, defaults=defaults, given=NONE, works=lambda trial: True)
    assert found == {**config, "shared_intermediate_size": 56}
    assert without_parts(found, defaults=defaults, given=NONE) == config
    given = frozenset({"shared_intermediate_size"})
    assert with_parts(subject, config, defaults=defaults, given=given, works=lambda trial: True) == config
    assert without_parts(found, defaults=defaults, given=given) == found


@pytest.mark.exhaustive
def test_a_list_of_layers_that_is_null_names_some_where_these_are_of_another_kind():
    """All layers of a bamba are Mamba-2 by default; gpt2 has no such list."""
    config = complete(resolve("bamba"), {})
    assert config["attn_layer_indices"] == [1, 2]
    subject, works = resolve("bamba"), lambda trial: True
    given = frozenset({"attn_layer_indices"})
    null = {**config, "attn_layer_indices": None}
    assert with_listed_layers(subject, null, given=given, works=works) == null
    assert with_listed_layers(subject, null, given=NONE, works=works) == config
    assert with_listed_layers(subject, null, given=NONE, works=lambda trial: False) == null


def test_guards_of_sums_stay_as_small_as_they_are():
    """Made visible, they would show in the few tokens only whose routing weights are small."""
    config = complete(resolve("ernie4_5_moe"), {})
    assert (config["moe_norm_min"], config["rms_norm_eps"]) == (1e-12, 2e-3)


def test_numbers_that_add_no_weights_stay_off():
    subject = resolve("dots1")
    config = complete(subject, {})
    assert config["first_k_dense_replace"] == 0
