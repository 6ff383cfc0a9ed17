"""Styles of the reward generator: all are covered, long names fit, names of the framework are reserved."""

from __future__ import annotations

import pytest
import reward_units as units

from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_questions


def test_every_style_is_covered():
    questions = {question.name: question for question in load_questions(units.ROOT / "templates/reward")}
    assert {answers["style"] for answers in units.UNITS.values()} == set(questions["style"].choices)


LONG = "a_reward_whose_name_is_as_long_as_names_are_allowed_to_be_60"
COLUMN = "a_column_with_a_rather_long_name"


SAMPLE = {"ours_code", "ours_judge", "ours_mean", "ours_total"}
NAMES = [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(units.UNITS)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_long_names_still_fit_the_line(seed, name):
    answers = dict(units.UNITS[name])
    if answers["style"] == "llm_judge":
        variable = "A_VARIABLE_OF_THE_GREATEST_LENGTH_ALLOWED"[:40]
        answers |= {"base_url_variable": variable, "api_key_variable": variable, "model": "m" * 80}
    if answers.get("answer_column") != "" and answers["style"] != "code":
        answers["answer_column"] = COLUMN
    if answers["style"] == "code":
        answers["tests_column"] = COLUMN
    assert len(LONG) == 60
    assert len(COLUMN) == 32
    unit = units.planned(seed, LONG, answers)
    assert all(check.ok for check in unit.checks)


def test_the_manifest_reserves_every_module_of_the_framework():
    manifest = load_manifest(units.ROOT / "templates/reward")
    helpers = {path.stem for path in (units.ROOT / "areal/reward").glob("[a-z]*.py")}
    table = (units.ROOT / "areal/reward/registry.py").read_text()
    assert {name for name in helpers if f'"{name}"' not in table} == set(manifest.reserved)
