"""The checks of `tooling.new.matrix` for every built-in kind, and a kind made by `areal-new template` in use."""

from __future__ import annotations

import json
from pathlib import Path

import model_reports as reports
import pytest

from tooling.cli.errors import UsageError
from tooling.kit.template.kinds import discover
from tooling.new.change import UnitRequest
from tooling.new.commands.generate import plan_unit
from tooling.new.matrix import MATRIX, its_tests_pass, two_at_once_never_mix
from tooling.new.testing import run_tests

ROOT = Path(__file__).resolve().parents[2]


ANSWERS = {
    "dataset": {},
    "environment": {"style": "tools"},
    "model": {},
    "reward": {"style": "boxed"},
    "template": {"folder": "areal/reward"},
    "workflow": {"style": "multi_turn"},
}


def request_for(kind, folder):
    """folder: for files that options name."""
    options = {}
    if kind == "model":
        # A finished report: the analysis takes seconds, and the checks generate dozens of times.
        (folder / "report.json").write_text(json.dumps(reports.gpt_neox()), encoding="utf-8")
        options["report"] = str(folder / "report.json")
    return UnitRequest(kind=kind, name="matrix_sample", answers=ANSWERS[kind], options=options)


def test_no_kind_is_left_out():
    assert sorted(ANSWERS) == sorted(discover(ROOT))


LEFT_OUT = {
    # The generated test of a template is this matrix once more; it is run for real below.
    ("template", "its_tests_pass"),
    # Two families made of one report claim the same model_type, so one of them is refused (test_model_template.py).
    ("model", "two_at_once_never_mix"),
}
LONG = (its_tests_pass, two_at_once_never_mix)
CASES = [
    pytest.param(kind, check, marks=[] if kind == "reward" and check not in LONG else [pytest.mark.exhaustive])
    for kind in ANSWERS
    for check in MATRIX
    if (kind, check.__name__) not in LEFT_OUT
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "check"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_every_kind_passes_the_matrix(kind, check, sandbox, tmp_path):
    check(sandbox, request_for(kind, tmp_path))


@pytest.mark.exhaustive
def test_a_new_kind_generates_units_that_register_and_pass_their_tests(sandbox, tmp_path):
    before = sandbox.tree()
    kind = UnitRequest(
        kind="template",
        name="length-bonus",
        answers={"folder": "areal/reward", "registry": "areal/reward/registry.py", "table": "REWARDS"},
    )
    sandbox.generate(kind)
    unit = UnitRequest(kind="length_bonus", name="short_ones", answers={"greeting": 'say "hi"'})
    made = sandbox.generate(unit)
    assert [item.value for item in made.registered] == ["areal.reward.short_ones:short_ones"]
    assert run_tests(sandbox.root, list(made.tests), python=sandbox.project.python).ok
    assert made.commit == "feat(length_bonus): add short-ones"
    sandbox.undo(unit)
    sandbox.undo(kind)
    assert sandbox.tree() == before


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_tests_that_come_with_a_new_kind_pass(sandbox, tmp_path):
    made = sandbox.generate(request_for("template", tmp_path))
    sandbox.commit()
    (path,) = made.tests
    # The races take longest and depend least on the kind; the matrix above runs them for every built-in one.
    cases = [
        f"{path}::test_matrix_sample_units[{check.__name__}]" for check in MATRIX if check is not two_at_once_never_mix
    ]
    result = run_tests(sandbox.root, cases, python=sandbox.project.python)
    assert result.ok, result.detail


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("folder", "missing"),
    [("areal/widget", "areal/widget/__init__.py"), ("areal/new/widget", "areal/new/__init__.py")],
)
def test_a_kind_whose_units_would_be_part_of_no_package_is_refused(sandbox, tmp_path, folder, missing):
    request = UnitRequest(kind="template", name="widget", answers={"folder": folder})
    with pytest.raises(UsageError, match=missing) as caught:
        plan_unit(sandbox.project, request)
    assert caught.value.where == "folder"
    for package in ("areal/new", folder):
        (sandbox.root / package).mkdir(exist_ok=True, parents=True)
        (sandbox.root / package / "__init__.py").write_text('"""Widgets."""\n')
    assert plan_unit(sandbox.project, request).plan


def test_a_folder_outside_any_package_is_fine(sandbox, tmp_path):
    assert plan_unit(sandbox.project, UnitRequest(kind="template", name="recipe", answers={"folder": "recipes"})).plan
