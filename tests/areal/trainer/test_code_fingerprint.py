"""The code that a configuration names is told apart by its text: that of the user's project, with what it imports."""

from __future__ import annotations

import pytest
import runs

from areal.trainer.code_fingerprint import changed_code, fingerprint_code

REWARD = """import json
import helpers.numbers
from shared import LIMIT


def score(*a, **d):
    return 1.0
"""
FILES = {
    "my_rewards.py": REWARD,
    "shared.py": "LIMIT = 3\n",
    "helpers/__init__.py": "",
    "helpers/numbers.py": "from . import words\nfrom areal.api import load\nONE = 1\n",
    "helpers/words.py": 'TEXT = """\n\n# not a comment\n"""\n',
    "unused.py": "X = 1\n",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a reward, and a function that rewrites one of its files and says what changed."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = runs.tiny(tmp_path / "run", reward="my_rewards:score")
    before = fingerprint_code(config)

    def edit(name, text):
        (tmp_path / name).write_text(text)
        return changed_code(before, fingerprint_code(config))

    edit.before = before
    return edit


def test_it_covers_the_module_and_what_it_imports_from_its_project(project):
    modules = project.before["reward my_rewards:score"]
    assert set(modules) == {"my_rewards", "shared", "helpers", "helpers.numbers", "helpers.words"}


def test_folders_without_init_files_are_packages_too(tmp_path, monkeypatch):
    folder = tmp_path / "lab" / "tasks" / "sums"
    folder.mkdir(parents=True)
    (folder / "own.py").write_text("import lab.tasks.sums.limits\ndef score(*a, **d):\n    return 1.0\n")
    (folder / "limits.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = fingerprint_code(runs.tiny(tmp_path / "run", reward="lab.tasks.sums.own:score"))
    assert set(found["reward lab.tasks.sums.own:score"]) == {"lab.tasks.sums.own", "lab.tasks.sums.limits"}
    assert "reward lab.nothing.own:score" not in fingerprint_code(
        runs.tiny(tmp_path / "run", reward="lab.nothing.own:score")
    )


@pytest.mark.parametrize(
    ("name", "text", "module"),
    [
        ("my_rewards.py", REWARD.replace("1.0", "2.0"), "my_rewards"),
        ("shared.py", "LIMIT = 4\n", "shared"),
        ("helpers/numbers.py", "ONE = 1\n", "helpers.numbers"),
        ("helpers/words.py", 'TEXT = """\n# not a comment\n"""\n', "helpers.words"),
        ("helpers/words.py", 'TEXT = """\n\n# no comment\n"""\n', "helpers.words"),
        ("shared.py", "LIMIT = (\n", "shared"),
    ],
)
def test_a_change_names_the_module_and_its_file(project, tmp_path, name, text, module):
    (line,) = project(name, text)
    assert line.startswith("  reward my_rewards:score: ")
    assert f"{module} ({(tmp_path / name).resolve()})" in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unused.py", "X = 2\n"),
        ("shared.py", "# why\n\n\nLIMIT = 3  # three\n"),
        ("helpers/__init__.py", "# nothing\n\n"),
        ("my_rewards.py", REWARD.replace("\n", "\r\n")),
    ],
)
def test_comments_blank_lines_and_files_that_are_not_imported_change_nothing(project, name, text):
    assert project(name, text) == []


def test_names_of_registries_tools_and_own_datasets_are_code_too(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text("def rows(*a, **d): ...\nclass Loss: ...\ndef add(a, b): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = runs.tiny(
        tmp_path / "run",
        reward="gsm8k",
        train_dataset__name="own_parts.rows",
        workflow="multi_turn",
        workflow_options={"tools": ["own_parts:add"]},
    )
    found = fingerprint_code(config)
    assert set(found["reward gsm8k"]) == {"areal.reward.gsm8k", "areal.reward.boxed"}
    assert set(found["workflow multi_turn"]) == {"areal.workflow.multi_turn"}
    assert set(found["train_dataset own_parts.rows"]) == set(found["workflow_options own_parts:add"]) == {"own_parts"}
    # Neither the file of the rows nor the preset of the objective is code.
    assert {name.partition(" ")[0] for name in found} == {"reward", "workflow", "train_dataset", "workflow_options"}


def test_every_component_of_several_rewards_is_code(tmp_path, monkeypatch):
    (tmp_path / "own_scores_1.py").write_text("def score(*a, **d): ...\n")
    (tmp_path / "own_scores_2.py").write_text("def score(*a, **d): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    reward = {"own_scores_1:score": 1.0, "second": {"path": "own_scores_2:score", "weight": 0.1}, "exact": 1.0}
    found = fingerprint_code(runs.tiny(tmp_path / "run", reward=reward))
    names = {"reward own_scores_1:score", "reward own_scores_2:score", "reward exact"}
    assert {name for name in found if name.startswith("reward ")} == names


def test_code_that_one_side_does_not_know_is_no_change():
    assert changed_code({}, {"reward exact": {"areal.reward.exact": "1"}}) == []
    assert changed_code({"reward exact": {"areal.reward.exact": "1"}}, {}) == []
