"""Units of every kind in a copy of this repository: registered, gated, and proven by the tests generated with them.

One run of pytest takes all generated tests. Beside each sound unit lie copies of it with one mistake each: the test
that was generated with the unit has to fail for every one of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dataset_units
import environment_units
import model_reports
import pytest
import reward_units
import workflow_units
from reward_units import ROOT

from tooling.cli.errors import NameRefusedError
from tooling.new.change import UnitRequest
from tooling.new.matrix import Sandbox

FOLDERS = {
    "dataset": "dataset",
    "environment": "environment",
    "model": "models",
    "reward": "reward",
    "workflow": "workflow",
}
LINT_IMPORTS = (
    "import sys; from importlinter.cli import lint_imports; "
    "sys.exit(lint_imports(limit_to_contracts=('areal-layers', 'wall-back'), no_cache=True))"
)
WRONG_REWARDS = {
    "always_one": "return 1.0",
    "always_zero": "return 0.0",
    "hides_errors": "try:\n        return ours(*args, **data)\n    except Exception:\n        return 0.0",
}
ACCEPTED = "tests/areal/reward/test_accepted.py"
TEST_OF_TRAINING = """
from areal.cli.main import main

WORDS = ["examples/math/arithmetic_grpo.yaml", "reward=ours_exact", "workflow=plain_answer"]
WORDS += ["train_dataset={name: scaffold_rl}", "model.tokenizer_path='bytes:'", "model.init.vocab_size=258"]


def test_training_accepts_the_new_units(capsys):
    assert main(["train", *WORDS, "--dry-run"]) == 0
    assert "ours_exact" in capsys.readouterr().out
"""


@dataclass
class Project:
    """A repository with generated units."""

    sandbox: Sandbox
    tests: dict[str, list[str]] = field(default_factory=dict)
    """By kind, the tests of its units."""
    modules: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str, answers: dict[str, Any], options: dict[str, str] | None = None) -> None:
        request = UnitRequest(kind=kind, name=name, answers=answers, options=options or {})
        made = self.sandbox.generate(request)
        assert [check.detail for check in made.checks if not check.ok] == [], name
        self.tests.setdefault(kind, []).extend(made.tests)
        paths = [change.path for change in made.plan.changes if change.before is None]
        self.modules += [path for path in paths if path.startswith("areal/") and path.endswith(".py")]

    def read(self, path: str) -> str:
        return (self.sandbox.root / path).read_text(encoding="utf-8")

    def spoil(self, kind: str, name: str, copies: dict[str, str]) -> list[str]:
        """Write copies of a unit, NAME_SUFFIX with the given source, and its test once for each; the tests."""
        source, tests = self.read(f"tests/areal/{kind}/test_{name}.py"), []
        for suffix, module in copies.items():
            other = f"{name}_{suffix}"
            (self.sandbox.root / f"areal/{kind}/{other}.py").write_text(module)
            test = re.sub(rf"\bareal\.{kind}\.{name}\b", f"areal.{kind}.{other}", source)
            test = test.replace(f"from areal.{kind} import {name}", f"from areal.{kind} import {other} as {name}")
            tests.append(f"tests/areal/{kind}/test_{other}.py")
            (self.sandbox.root / tests[-1]).write_text(test)
        return tests

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `python COMMAND` with the repository's own packages."""
        paths = os.pathsep.join([str(self.sandbox.root), str(ROOT / "tests/templates")])
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        variables |= {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "", **environment}
        variables |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        command = (sys.executable, *command)
        return subprocess.run(
            command, cwd=self.sandbox.root, env=variables, capture_output=True, text=True, check=False
        )


def build(project: Project, folder: Path) -> Project:
    """Generate the units of every kind."""
    for kind, units in (
        ("workflow", workflow_units),
        ("environment", environment_units),
        ("reward", reward_units),
    ):
        for name, answers in units.UNITS.items():
            project.add(kind, name, answers)
    for name, (rows, answers) in reward_units.EXAMPLES.items():
        path = reward_units.write_rows(folder / f"{name}.jsonl", rows)
        project.add("reward", name, answers, {"from-examples": str(path)})
    for name, answers, options in dataset_units.requests(folder):
        project.add("dataset", name, answers, options)
    for name in model_reports.REPORTS:
        (folder / f"{name}.json").write_text(json.dumps(model_reports.REPORTS[name]()), encoding="utf-8")
        project.add("model", name, {}, {"report": str(folder / f"{name}.json")})
    return project


def spoiled(project: Project) -> list[str]:
    """Write units with a mistake; their tests."""
    tests = []
    for kind, units in (("workflow", workflow_units), ("environment", environment_units)):
        for name in units.MISTAKES:
            sources = units.mistaken(name, project.read(f"areal/{kind}/{name}.py"))
            tests += project.spoil(kind, name, {f"wrong{n}": source for n, source in enumerate(sources)})
    for name in reward_units.UNITS:
        source = project.read(f"areal/reward/{name}.py")
        copies = {
            mistake: f"{source}\n\nours = {name}_reward\n\n\ndef {name}_reward(*args, **data):\n    {body}\n"
            for mistake, body in WRONG_REWARDS.items()
        }
        tests += project.spoil("reward", name, copies)
    source = project.read("areal/reward/solved.py")
    tests += project.spoil("reward", "solved", {"inverted": source.replace("== expected", "!= expected")})
    source = project.read("areal/dataset/from_hashes.py")
    changes = [change for change in dataset_units.MISTAKES if change[0] in source]
    copies = {f"wrong{n}": source.replace(*change) for n, change in enumerate(changes)}
    return tests + project.spoil("dataset", "from_hashes", copies)


def misjudged(project: Project) -> list[str]:
    """Run the tests of all units and of copies with mistakes; those of units that fail, and of mistakes that pass."""
    wrong = spoiled(project)
    assert len(wrong) >= 68
    sound = [path for paths in project.tests.values() for path in paths]
    sound += [ACCEPTED, "tests/areal/reward/test_registry.py"]
    (project.sandbox.root / ACCEPTED).write_text(TEST_OF_TRAINING)
    outcomes = project.sandbox.root / ".git/outcomes.json"
    try:
        # The plugin of hypothesis would first parse every module of the copy, to draw the constants in them as examples.
        arguments = ["-m", "pytest", "-q", "-p", "first_failure", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        done = project.run(*arguments, "--tb=short", *sound, *wrong, OUTCOMES=str(outcomes))
    finally:
        (project.sandbox.root / ACCEPTED).unlink()
        for path in wrong:
            (project.sandbox.root / path).unlink()
            (project.sandbox.root / path.replace("tests/", "").replace("test_", "")).unlink()
    found = json.loads(outcomes.read_text())
    assert min(len(found[path]["passed"]) for path in project.tests["dataset"]) > 5, done.stdout[-5000:]
    failing = [f"{path}: {found[path]}" for path in sound if found[path].keys() != {"passed"}]
    return failing + [path for path in wrong if "failed" not in found.get(path, {})]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all-units")
    return build(Project(Sandbox.copy_of(ROOT, folder)), folder)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_generated_tests_pass_and_find_mistakes_and_training_accepts_the_units(project):
    assert misjudged(project) == []


@pytest.mark.exhaustive
def test_every_unit_is_registered_and_listed_once(project):
    document = (project.sandbox.root / "docs/extensions.md").read_text()
    for kind, folder in FOLDERS.items():
        registry = (project.sandbox.root / f"areal/{folder}/registry.py").read_text()
        before = (ROOT / f"areal/{folder}/registry.py").read_text()
        added = Counter(registry.splitlines()) - Counter(before.splitlines())
        assert not Counter(before.splitlines()) - Counter(registry.splitlines())
        for path in project.tests[kind]:
            name = Path(path).stem.removeprefix("test_")
            assert any(f'"{name}' in line and f"areal.{folder}.{name}" in line for line in added), name
            assert any(f"| `{name}" in line for line in document.splitlines()), name
    for name in reward_units.UNITS:
        assert document.count(f"| `{name}` |") == 1


@pytest.mark.exhaustive
def test_no_reward_holds_anything_of_another_style(project):
    signs = {
        "exact": "completions.strip() ==",
        "boxed": "last_boxed(completions)",
        "math_verify": "math_verify_reward(",
        "regex": "_PATTERN",
        "choice": "_STATED",
        "code": "run_tests(",
        "llm_judge": "_JUDGE",
    }
    for name in reward_units.UNITS:
        source = project.read(f"areal/reward/{name}.py")
        assert [style for style, sign in signs.items() if sign in source] == [reward_units.UNITS[name]["style"]]
        assert "{{" not in source
        assert "{%" not in source


@pytest.mark.parametrize("name", ["tools", "rlvr", "Multi-Turn", "with_engine"])
def test_names_of_modules_beside_it_are_refused(sandbox, name):
    with pytest.raises(NameRefusedError):
        sandbox.generate(UnitRequest(kind="workflow", name=name))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gate", ["mypy", "import-linter", "ruff", "architecture"])
def test_generated_code_passes_the_other_gates(project, gate):
    modules = project.modules
    # What the modules import is the same wherever the copy is: later runs need not read it again.
    command = {
        "mypy": ["-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache/generated"), *modules],
        "import-linter": ["-c", LINT_IMPORTS],
        "ruff": ["-m", "ruff", "check", "--no-cache", *modules],
        "architecture": ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py"],
    }[gate]
    done = project.run(*command)
    if gate == "architecture":  # what the rest of the copy lacks is no concern of the units
        assert [path for path in modules if path in done.stdout] == [], done.stdout[-3000:]
    else:
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-1000:]}"
