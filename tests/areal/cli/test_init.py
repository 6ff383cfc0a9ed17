"""`areal init`: a project that trains at once, that `areal-new` extends, and that overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal.api import ConfigError, UsageError
from areal.cli import main as cli
from areal.cli.commands.init import project_files
from areal.dataset.registry import DATASETS
from areal.reward.registry import REWARDS
from areal.trainer.configuration.project import find_project, use_project
from areal.workflow.registry import WORKFLOWS

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def tables(monkeypatch):
    """The registries, the import path and the modules of the project; put back afterwards."""
    before = [dict(table) for table in (DATASETS, REWARDS, WORKFLOWS)]
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for table, content in zip((DATASETS, REWARDS, WORKFLOWS), before, strict=True):
        table.clear()
        table.update(content)
    for name in [name for name in sys.modules if name.partition(".")[0] == "digits"]:
        del sys.modules[name]


def play(folder: Path, program: str, *words: str) -> str:
    done = subprocess.run(
        [str(PROGRAMS / program), *words], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def init(*words: object, capsys) -> dict:
    code = cli.main(["init", *map(str, words), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    return answer


def test_a_dry_run_names_the_files_and_writes_none_of_them(tmp_path, capsys):
    planned = init(tmp_path / "My-Digits", "--dry-run", capsys=capsys)
    assert (planned["ok"], planned["package"], planned["git"]) == (True, "my_digits", True)
    assert list(tmp_path.iterdir()) == []

    written = init(tmp_path / "My-Digits", capsys=capsys)
    assert written["files"] == planned["files"]
    found = [path.relative_to(tmp_path / "My-Digits") for path in (tmp_path / "My-Digits").rglob("*") if path.is_file()]
    assert sorted(str(path) for path in found if path.parts[0] != ".git") == sorted(planned["files"])
    assert (tmp_path / "My-Digits" / ".git").is_dir()


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("mine")
    answer = init(tmp_path, "--package", "digits", capsys=capsys)
    assert (answer["exit_code"], answer["code"]) == (2, "usage")
    assert "config.yaml" in answer["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "mine"


def test_a_failure_in_the_middle_leaves_the_folder_as_it_was(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no git
    answer = init(tmp_path / "below" / "digits", capsys=capsys)
    assert answer["error"] == "git is not installed"
    assert list(tmp_path.iterdir()) == []

    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    renamed = []

    def rename(self: Path, target: Path) -> None:
        if len(renamed) == 3:
            raise OSError(28, "No space left on device")
        renamed.append(target)
        os.rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert init(full, "--no-git", capsys=capsys)["exit_code"] == 21
    assert len(renamed) == 3
    assert [path.name for path in full.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["torch", "json", "areal", "class", "9lives", "tests"])
def test_a_package_that_cannot_be_or_would_hide_another_is_refused(name, tmp_path, capsys):
    answer = init(tmp_path, "--package", name, capsys=capsys)
    assert (answer["exit_code"], answer["fix"]) == (2, "choose another name with --package")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def project(tmp_path, capsys):
    assert init(tmp_path / "digits", "--no-git", capsys=capsys)["ok"]
    return tmp_path / "digits"


@pytest.mark.usefixtures("tables")
def test_a_configuration_names_what_the_project_registers(project, monkeypatch, capsys):
    (project / "runs").mkdir()
    monkeypatch.chdir(project / "runs")  # from any folder below
    assert cli.main(["list", "rewards", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["rewards"]
    assert listed["larger"] == "digits.reward.larger:larger_reward"
    assert "gsm8k" in listed

    monkeypatch.chdir(project)
    assert cli.main(["train", "config.yaml", "--dry-run", "--json"]) == 0
    assert cli.main(["train", "config.yaml", "--dry-run", "reward=largr"]) == 2
    assert "did you mean 'larger'" in capsys.readouterr().err
    assert str(project) in sys.path


@pytest.mark.usefixtures("tables")
def test_a_name_of_ours_and_a_broken_registry_are_refused_with_the_file(project):
    registry = project / "digits" / "reward" / "registry.py"
    text = registry.read_text()
    registry.write_text(text.replace('"larger":', '"gsm8k":'))
    with pytest.raises(ConfigError, match="'gsm8k' is a name of areal") as caught:
        use_project(project)
    assert caught.value.where == str(registry)
    assert REWARDS["gsm8k"].startswith("areal.")

    for broken in ("REWARDS = {", "REWARDS = dict(a='b')", "REWARDS = {'larger': 1}"):
        registry.write_text(broken)
        with pytest.raises(ConfigError, match="reward names cannot be read"):
            find_project(project)
    registry.unlink()
    assert find_project(project).names["reward"] == {}
    (project / "pyproject.toml").write_text("[tool")
    with pytest.raises(UsageError, match="cannot be read"):
        find_project(project)


def test_outside_of_a_project_and_in_our_own_repository_nothing_is_entered(tmp_path):
    assert find_project(tmp_path) is None
    assert find_project(ROOT / "areal") is None


def test_the_readme_and_the_files_name_the_package():
    files = project_files("digits")
    assert all("$" not in content for content in files.values())
    assert "digits/reward/registry.py" in files["README.md"]


@pytest.mark.exhaustive
def test_a_new_project_learns_and_a_generated_reward_is_found(tmp_path):
    play(tmp_path, "areal", "init", "digits")
    project = tmp_path / "digits"
    play(project, "python", "-m", "pytest", "-q")
    first = json.loads(play(project, "areal", "train", "config.yaml", "--json"))
    assert first["summary"]["reward"] > 0.9
    rows = [json.loads(line) for line in (project / "runs/digits/first/metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert rewards[0] < 0.3

    made = json.loads(play(project, "areal-new", "reward", "my-score", "--json"))
    assert made["next"][0] == "areal train CONFIG.yaml reward=my_score --dry-run"
    assert made["warnings"] == []
    words = ["config.yaml", "reward=my_score", "trial_name=second", "total_train_steps=2", "--json"]
    second = json.loads(play(project, "areal", "train", *words))
    assert second["summary"]["finished"]
    play(project, "areal", "eval", "runs/digits/first")
    play(project, "areal-new", "undo", "reward", "my-score")
    assert "my_score" not in play(project, "areal", "list", "rewards")
