"""Which config class goes with the model class of an installed type."""

import pytest

from areal.porting.probe.subject import resolve


@pytest.mark.parametrize("model_type", ["internlm3", "iquestcoder"])
def test_types_that_share_a_model_class_keep_their_config_class(model_type):
    subject = resolve(model_type)
    assert subject.model_type == model_type
    assert subject.config_class.model_type == model_type


def test_the_text_part_of_a_wrapper_has_its_own_config_class():
    assert resolve("llama4_text").config_class.__name__ == "Llama4TextConfig"
