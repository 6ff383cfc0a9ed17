"""Starting over: what a run left is moved aside whole, also by a process that is killed in the middle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from areal.api import CheckpointError, UsageError
from areal.infra.checkpoint import archive
from areal.infra.checkpoint.archive import archive_run, complete_archive, plan_archive


@pytest.fixture
def run(tmp_path):
    """A run directory with files, folders and the lock of the run."""
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step-00000004.000001").mkdir(parents=True)
    (folder / "final").mkdir()
    for name in ("metrics.jsonl", "run.lock", "final/config.json", "checkpoints/step-00000004.000001/manifest.json"):
        (folder / name).write_text(name)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_everything_but_the_lock_is_moved_and_each_start_over_gets_its_own_folder(run):
    before = content(run)
    plan = plan_archive(run)
    assert (plan.target, plan.entries) == (run / "archived" / "0001", ("checkpoints", "final", "metrics.jsonl"))
    assert content(run) == before, "a plan moves nothing"
    assert archive_run(run) == plan.target
    assert content(plan.target) == {name: text for name, text in before.items() if name != "run.lock"}
    assert sorted(entry.name for entry in run.iterdir()) == ["archived", "run.lock"]
    assert archive_run(run) is None
    (run / "metrics.jsonl").write_text("second")
    assert archive_run(run) == run / "archived" / "0002"
    assert content(plan.target)["metrics.jsonl"] == "metrics.jsonl"


@pytest.mark.parametrize("moved", range(4))
def test_a_move_that_was_killed_is_completed_by_the_next_start(run, monkeypatch, moved):
    before = content(run)
    rename, calls = Path.rename, []

    class Killed(BaseException):
        pass

    def rename_until_killed(self, target):
        if len(calls) == moved:
            raise Killed
        calls.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_until_killed)
        with pytest.raises(Killed):
            archive_run(run)
    assert not (run / "archived" / "0001").exists()
    assert complete_archive(run) == run / "archived" / "0001"
    assert content(run / "archived" / "0001") == {name: text for name, text in before.items() if name != "run.lock"}
    assert complete_archive(run) is None


def test_a_disk_that_refuses_the_move_is_named_and_nothing_is_lost(run, monkeypatch):
    before = content(run)

    def refuse(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archive.Path, "rename", refuse)
        with pytest.raises(CheckpointError, match=r"No space left.*Nothing is lost"):
            archive_run(run)
    assert content(run) == before
    assert archive_run(run) == run / "archived" / "0001"


def test_a_directory_that_holds_the_current_folder_is_not_moved(run, monkeypatch):
    monkeypatch.chdir(run / "final")
    with pytest.raises(UsageError, match="holds the current folder"):
        plan_archive(run)
    assert "metrics.jsonl" in os.listdir(run)


def test_an_empty_or_missing_directory_has_nothing_to_move(tmp_path):
    assert plan_archive(tmp_path / "none") is None
    assert archive_run(tmp_path) is None
