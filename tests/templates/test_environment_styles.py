"""Every style of `areal-new environment`: gates, answers that are refused, and what a module holds."""

from __future__ import annotations

import re

import pytest
from environment_units import UNITS
from styled_units import assert_fits_elsewhere, assert_passes_the_gates, generated, module_of

from tooling.cli.errors import UsageError

LONG = "a_rather_long_name_for_a_world_of_ours_as_long_as_allowed_is"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", UNITS)
def test_every_style_passes_the_gates_and_is_the_same_each_time(name):
    assert_passes_the_gates("environment", name, UNITS[name])


@pytest.mark.sample(2)
@pytest.mark.parametrize("style", ["text", "tools"])
@pytest.mark.parametrize("package", ["areal", "my_company.agents"])
def test_long_names_and_other_packages_pass_the_gates_too(style, package, tmp_path):
    assert_fits_elsewhere("environment", LONG, package, tmp_path, style=style)


@pytest.mark.parametrize(
    ("name", "absent"),
    [("number_game", ["ActionCall", "calls", "tools", "_ITEMS"]), ("corner_shop", ["_NUMBER", "guess", "highest"])],
)
def test_a_module_holds_nothing_of_other_styles(name, absent):
    module = module_of("environment", name, UNITS[name])
    assert [word for word in absent if re.search(rf"\b{word}\b", module)] == []
    assert not re.search(r"{[{%]", module)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"style": "image"}, "text"),
        ({"max_steps": 0}, "expected 1 .. 1000"),
        ({"max_steps": 1001}, "expected 1 .. 1000"),
    ],
)
def test_answers_that_make_no_sense_are_refused(answers, message):
    with pytest.raises(UsageError) as caught:
        generated("environment", "refused", **answers)
    assert message in str(caught.value)
