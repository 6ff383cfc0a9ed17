"""Every task of every skill: a scripted solution is done, and each way of doing it wrong fails where it should."""

from __future__ import annotations

import dataclasses
import json
from datetime import date

import first_tasks
import pytest
import second_tasks
from task_steps import nothing

from tooling.harness.evaluation.checks import judge

GOOD = first_tasks.GOOD | second_tasks.GOOD
SLOW_GOOD = first_tasks.SLOW_GOOD | second_tasks.SLOW_GOOD
"""Their scripted solutions analyse a model, or the source of another package."""
BROKEN = first_tasks.BROKEN | second_tasks.BROKEN
ALWAYS_EXHAUSTIVE = ("add-unit-tests/", "create-pr/", "translate-doc-zh/")
"""Tasks whose checks start many processes."""
CHEAP = {"changed", "clean", "file", "registry", "remote", "symbol"}
"""Kinds that are judged for every broken solution; of the others only the one that has to fail."""


def problems(evaluation, workspace, *, expected="", quick=True):
    """What fails, by the sentence; cheap checks and those that are expected to fail."""
    if expected:
        kept = [one for one in evaluation.checks if one.kind in CHEAP or one.says.startswith(expected)]
        evaluation = dataclasses.replace(evaluation, checks=tuple(kept))
    return {one.check.says: one.problem for one in judge(evaluation, workspace, quick=quick) if one.problem}


def snapshot(workspace):
    files = {path: workspace.root / path for path in workspace.changed()}
    return {path: file.read_bytes() if file.is_file() else None for path, file in files.items()}


def put_back(workspace, files):
    """The work tree as it was; commits since the snapshot go."""
    workspace.git("reset", "-q", "--hard", workspace.start)
    workspace.git("clean", "-fdq")
    for path, content in files.items():
        target = workspace.root / path
        if content is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def expect_broken(evaluation, workspace, done, name, breaks, expected):
    """The broken solution fails at the assertion that is meant; without a done one nothing was there to break."""
    put_back(workspace, done)
    breaks(workspace)
    found = problems(evaluation, workspace, expected=expected)
    assert any(says.startswith(expected) for says in found), f"{name}: {json.dumps(found, indent=1)}"


def test_every_skill_has_a_task_with_a_solution_and_broken_ones(context, evaluations):
    skills = [skill.name for skill in context.sources.skills]
    assert sorted(evaluations) == sorted(f"{name}/{number}" for name in skills for number in (1, 2))
    assert evaluations.keys() == (GOOD | SLOW_GOOD).keys() == BROKEN.keys()


def tasks():
    """Every task; all but one exhaustive, another one each day (those that start many processes never)."""
    cheap = sorted(name for name in GOOD if not name.startswith(ALWAYS_EXHAUSTIVE))
    today = cheap[date.today().toordinal() % len(cheap)]
    return [pytest.param(name, marks=() if name == today else pytest.mark.exhaustive) for name in sorted(GOOD)]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", tasks())
def test_a_solution_is_done_and_a_broken_one_fails_where_it_should(name, begin, evaluations):
    evaluation, workspace = evaluations[name], begin(name)
    start = snapshot(workspace)
    commits = any(check.kind in {"commits", "remote"} for check in evaluation.checks)
    fresh = [one for one in BROKEN[name] if commits or one[1] is nothing]
    for broken in fresh:
        expect_broken(evaluation, begin(name) if commits else workspace, start, *broken)
    put_back(workspace, start)
    GOOD[name](workspace)
    done = snapshot(workspace)
    assert problems(evaluation, workspace) == {}
    for broken in BROKEN[name]:
        if broken not in fresh:
            expect_broken(evaluation, workspace, done, *broken)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(SLOW_GOOD))
def test_a_broken_solution_of_a_slow_task_fails_where_it_should(name, begin, evaluations):
    workspace = begin(name)
    for broken in BROKEN[name]:
        expect_broken(evaluations[name], workspace, {}, *broken)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(SLOW_GOOD))
def test_a_solution_of_a_slow_task_is_done(name, begin, evaluations):
    evaluation, workspace = evaluations[name], begin(name)
    SLOW_GOOD[name](workspace)
    # The proof of a family takes minutes, and is run by its own tests; the audit is what this task is about.
    assert problems(evaluation, workspace, quick=name.startswith("add-model/")) == {}
