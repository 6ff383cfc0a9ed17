"""Fields that a config class turns into rope_parameters are bound to what it writes, not to what they were."""

from __future__ import annotations

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.bind.partial_rotary import RotatedField, rotated_fields, without_rotated_fields
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete

pytest.importorskip("transformers.models.minimax_m2")


@pytest.mark.exhaustive
def test_a_field_that_becomes_the_rotated_part_is_found_with_and_without_a_value():
    subject = resolve("minimax_m2")
    for given in ({}, {"head_dim": 24, "rotary_dim": 12}):
        assert rotated_fields(subject, complete(subject, given)) == [RotatedField("rotary_dim", "head_dim")]


def test_it_leaves_the_base_config_and_stays_in_rope_parameters():
    subject = resolve("minimax_m2")
    base = complete(subject, {"head_dim": 24, "rotary_dim": 12})
    assert base["rotary_dim"] == 12
    fewer = without_rotated_fields(base, rotated_fields(subject, base))
    assert "rotary_dim" not in fewer
    assert fewer["rope_parameters"]["partial_rotary_factor"] == 0.5


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", ["llama", "gpt_neox"])
def test_other_classes_have_no_such_field_with_a_size(model_type):
    subject = resolve(model_type)
    assert not [each for each in rotated_fields(subject, complete(subject, {})) if each.size]


@pytest.mark.exhaustive
def test_the_rotated_dimensions_follow_from_the_part_and_its_absence_means_all():
    report = as_json(analyse(resolve("minimax_m2"), tiny={"head_dim": 24, "rotary_dim": 12}))
    assert report["status"] == "proven"
    dim = report["slots"]["layer.rotary.dim"]
    assert dim["powers"] == {"head_dim": 1.0, "rope_parameters.partial_rotary_factor": 1.0}
    uses = {use["name"]: use for use in report["fields"]}
    assert "rotary_dim" not in uses
    assert uses["rope_parameters"]["rotated"] == ["rotary_dim", "head_dim"]
    assert "partial_rotary_factor" not in uses["rope_parameters"]["default"]
