"""Every style of the reward generator in a copy of this repository: gates, its own tests, mistakes they must find."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tooling.kit.template.manifest import load_manifest
from tooling.kit.template.questions import load_questions


def _helper():
    spec = importlib.util.spec_from_file_location("reward_units", Path(__file__).with_name("reward_units.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


units = _helper()
NAMES = sorted(units.UNITS)
TESTS = [f"tests/areal/reward/test_{name}.py" for name in NAMES]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = units.copied_repository(tmp_path_factory.mktemp("styles"))
    for name, answers in units.UNITS.items():
        units.written(root, units.planned(root, name, answers))
    return root


def test_every_style_is_covered():
    questions = {question.name: question for question in load_questions(units.ROOT / "templates/reward")}
    assert {answers["style"] for answers in units.UNITS.values()} == set(questions["style"].choices)


def test_generating_again_changes_nothing(repository):
    for name, answers in units.UNITS.items():
        assert units.planned(repository, name, answers).plan.changes == ()


def test_each_unit_is_registered_and_listed_once(repository):
    registry = (repository / "areal/reward/registry.py").read_text()
    document = (repository / "docs/extensions.md").read_text()
    for name in NAMES:
        assert registry.count(f'"{name}": "areal.reward.{name}:{name}_reward",') == 1
        assert document.count(f"| `{name}` |") == 1
    difference = subprocess.run(
        [
            "git",
            "diff",
            "--no-index",
            "--numstat",
            str(units.ROOT / "areal/reward/registry.py"),
            "areal/reward/registry.py",
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert difference[:2] == [str(len(NAMES)), "0"]


def test_no_module_holds_anything_of_another_style(repository):
    signs = {
        "exact": "completions.strip() ==",
        "boxed": "last_boxed(completions)",
        "math_verify": "math_verify_reward(",
        "regex": "_PATTERN",
        "choice": "_STATED",
        "code": "run_tests(",
        "llm_judge": "_JUDGE",
        "composite": "weighted_sum(",
    }
    for name, answers in units.UNITS.items():
        source = (repository / f"areal/reward/{name}.py").read_text()
        assert [style for style, sign in signs.items() if sign in source] == [answers["style"]]
        assert "{{" not in source
        assert "{%" not in source


def test_the_generated_tests_pass(repository):
    done = units.run(
        repository, "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "tests/areal/reward/test_registry.py"
    )
    assert done.returncode == 0, done.stdout[-3000:]


MISTAKES = {
    "always_one": "return 1.0",
    "always_zero": "return 0.0",
    "hides_errors": "try:\n        return ours(*args, **data)\n    except Exception:\n        return 0.0",
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_the_generated_tests_find_mistakes(repository, mistake):
    modules = {name: repository / f"areal/reward/{name}.py" for name in NAMES}
    before = {name: path.read_text() for name, path in modules.items()}
    try:
        for name, path in modules.items():
            wrong = f"ours = {name}_reward\n\n\ndef {name}_reward(*args, **data):\n    {MISTAKES[mistake]}\n"
            path.write_text(f"{before[name]}\n\n{wrong}")
        done = units.run(repository, "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *TESTS)
    finally:
        for name, path in modules.items():
            path.write_text(before[name])
    blind = [test for test in TESTS if f"FAILED {test}" not in done.stdout]
    assert blind == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_repositorys_other_gates_pass(repository):
    modules = [f"areal/reward/{name}.py" for name in NAMES]
    # What the modules import is the same wherever the copy is: other kinds and later runs need not read it again.
    types = units.run(repository, "mypy", "--cache-dir", str(units.ROOT / ".mypy_cache" / "generated"), *modules)
    assert types.returncode == 0, types.stdout
    rules = units.run(
        repository,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_architecture.py",
        "-k",
        "sizes or reading or screen or registr or ignore or skipped or can_fail or heavy or prints or machine",
    )
    assert not [name for name in NAMES if name in rules.stdout], rules.stdout[-3000:]
    style = units.run(repository, "ruff", "check", "--no-cache", *modules, *TESTS)
    assert style.returncode == 0, style.stdout


def test_training_accepts_the_new_reward(repository):
    done = units.run(
        repository, "areal", "train", "examples/math/arithmetic_grpo.yaml", "reward=ours_exact", "--dry-run"
    )
    assert done.returncode == 0, done.stderr
    assert "ours_exact" in done.stdout


LONG = "a_reward_whose_name_is_as_long_as_names_are_allowed_to_be_60"
COLUMN = "a_column_with_a_rather_long_name"


@pytest.mark.parametrize("name", NAMES)
def test_long_names_still_fit_the_line(repository, name):
    answers = dict(units.UNITS[name])
    if answers["style"] == "llm_judge":
        variable = "A_VARIABLE_OF_THE_GREATEST_LENGTH_ALLOWED"[:40]
        answers |= {"base_url_variable": variable, "api_key_variable": variable, "model": "m" * 80}
    if answers.get("answer_column") != "" and answers["style"] not in {"code", "composite"}:
        answers["answer_column"] = COLUMN
    if answers["style"] == "code":
        answers["tests_column"] = COLUMN
    assert len(LONG) == 60
    assert len(COLUMN) == 32
    unit = units.planned(repository, LONG, answers)
    assert all(check.ok for check in unit.checks)


def test_the_manifest_reserves_every_module_of_the_framework():
    manifest = load_manifest(units.ROOT / "templates/reward")
    helpers = {path.stem for path in (units.ROOT / "areal/reward").glob("[a-z]*.py")}
    table = (units.ROOT / "areal/reward/registry.py").read_text()
    assert {name for name in helpers if f'"{name}"' not in table} == set(manifest.reserved)
