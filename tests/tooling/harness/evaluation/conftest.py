"""One scratch copy of this repository for all tasks, and workspaces in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.harness.context import open_context
from tooling.harness.evaluation.read import read_evaluations, with_evaluations
from tooling.harness.evaluation.records import TASKS
from tooling.harness.evaluation.workspace import make_base, prepare

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def context():
    return open_context(ROOT)


@pytest.fixture(scope="session")
def evaluations(context):
    """This repository's tasks by their names."""
    if not (ROOT / TASKS).is_dir():
        pytest.skip(f"{TASKS} is not in this copy: an agent works in it")
    skills = with_evaluations([skill.name for skill in context.sources.skills], context.files)
    return {one.name: one for one in read_evaluations(ROOT, skills, context.files)}


@pytest.fixture(scope="session")
def base(context, tmp_path_factory):
    return make_base(ROOT, context.files, tmp_path_factory.mktemp("evaluation"))


@pytest.fixture
def begin(base, evaluations, tmp_path):
    """Prepare the workspace of a task."""
    made = iter(range(100))

    def prepared(name):
        return prepare(base, evaluations[name], ROOT, tmp_path / f"workspace-{next(made)}")

    return prepared
