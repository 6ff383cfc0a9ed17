"""The workspace of a task: everything is there that a skill tells to use, and none of the answers."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.fixture(scope="module")
def workspace(base, evaluations, tmp_path_factory):
    from tooling.harness.evaluation.workspace import prepare

    return prepare(base, evaluations["add-reward/1"], base, tmp_path_factory.mktemp("task") / "repository")


def as_an_agent(workspace, *words):
    """Run a command as a shell in the workspace does: no variable says where the code is."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(workspace.root / ".git"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        words, cwd=workspace.root, env=variables, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.exhaustive
def test_its_programs_run_its_own_code(workspace):
    (workspace.root / "tooling/cli/marked.py").write_text("MARK = 'of the workspace'\n", encoding="utf-8")
    said = as_an_agent(workspace, ".venv/bin/python", "-c", "import tooling.cli.marked as m, libcst; print(m.MARK)")
    (workspace.root / "tooling/cli/marked.py").unlink()
    assert said.stdout == "of the workspace\n", said.stderr
    kinds = as_an_agent(workspace, ".venv/bin/areal-new", "kinds")
    assert "reward" in kinds.stdout, kinds.stderr
    assert as_an_agent(workspace, ".venv/bin/ruff", "--version").returncode == 0


def test_setup_finds_it_ready_and_git_does_not_see_it(workspace):
    done = as_an_agent(workspace, "bash", "scripts/setup.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert workspace.changed() == []


def test_what_is_installed_there_stays_there(workspace):
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    said = as_an_agent(workspace, ".venv/bin/python", "-c", place).stdout.strip()
    assert said.startswith(str(workspace.root.resolve()))


def test_no_answer_lies_in_a_workspace_or_beside_a_skill(workspace, context):
    assert not (workspace.root / "tests/skills").exists()
    beside = [path for path in context.files if path.startswith("skills/") and path.endswith(("evals.json", ".toml"))]
    assert [path for path in beside if "/fixtures/" not in path] == []  # those are projects that examples run in
