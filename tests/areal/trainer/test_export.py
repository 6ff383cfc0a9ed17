"""`areal export`: any recovery checkpoint becomes the folder that the run itself would have written."""

from __future__ import annotations

import json
import shlex
import shutil

import pair_runs
import pytest
import runs
import torch
from safetensors.torch import load_file

from areal.api import CheckpointError, UsageError
from areal.cli.main import main
from areal.engine import precision
from areal.trainer.export import export_checkpoint, find_step


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pair_runs.write_pairs(tmp_path_factory.mktemp("pairs"), train=16, test=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An RL run with a critic and a checkpoint of every step, on a machine where dtype auto is bfloat16."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    settings = {"objective__preset": "ppo", "critic": {"device": "cpu"}, "actor__device": "cpu"}
    small = {"total_train_steps": 2, "rollout__batch_size": 2, "rollout__group_size": 2}
    saved = {"checkpoint__every_steps": 1, "actor__lr_schedule": "cosine"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "_computes_in_bfloat16", lambda device: True)
        runs.train(runs.tiny(folder, **settings, **small, **saved))
    return folder


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_last_checkpoint_is_the_final_model_bit_by_bit(run, tmp_path):
    exported = export_checkpoint(run, output=tmp_path / "model")
    assert (exported.step, exported.adapter) == (2, None)
    assert files_of(exported.folder) == files_of(run / "final")
    assert {tensor.dtype for tensor in load_file(exported.folder / "model.safetensors").values()} == {torch.bfloat16}


def test_an_earlier_one_is_another_model_and_the_command_says_where_it_is(run, capsys):
    assert main(["export", str(run), "--step", "1", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert not (run / "exports").exists()
    assert main(["export", str(run), "--step", "1", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["folder"] == planned["folder"] == str(run / "exports" / "step-00000001")
    first, last = (load_file(folder / "model.safetensors") for folder in (run / "exports/step-00000001", run / "final"))
    assert first.keys() == last.keys()
    assert any(not torch.equal(first[name], last[name]) for name in first)
    assert main(["export", str(run), "--step", "1", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replaces"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dpo", {"actor__lora": {"rank": 4, "alpha": 8}}),
        ("reward_model", {}),
        pytest.param("dpo", {}, marks=pytest.mark.exhaustive),
    ],
)
def test_every_kind_of_run_is_exported_as_it_ends(tmp_path, pairs, kind, changes):
    changes = {**changes, "total_train_steps": 1, "valid_dataset": None, "actor__device": "cpu"}
    pair_runs.train(pair_runs.tiny(kind, tmp_path / "run", pairs, **changes))
    exported = export_checkpoint(tmp_path / "run")
    assert files_of(exported.folder) == files_of(tmp_path / "run" / "final")
    if "actor__lora" in changes:
        assert exported.adapter == tmp_path / "run" / "exports" / "step-00000001-adapter"
        assert files_of(exported.adapter) == files_of(tmp_path / "run" / "adapter")


def test_what_cannot_be_exported_is_refused_with_the_way_out(run, tmp_path, capsys):
    with pytest.raises(UsageError, match=r"no recovery checkpoint of step 7; there are 1, 2"):
        find_step(run, 7)
    with pytest.raises(UsageError, match="holds no checkpoints/"):
        export_checkpoint(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not a checkpoint folder"):
        export_checkpoint(run, output=tmp_path / "taken")
    assert main(["export", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["fix"]


@pytest.mark.parametrize("damage", ["cut short", "one byte altered", "a file gone", "manifest gone"])
def test_a_damaged_newest_checkpoint_names_the_newest_intact_one_and_its_command(run, tmp_path, capsys, damage):
    copy = tmp_path / "a run"
    shutil.copytree(run / "checkpoints", copy / "checkpoints")
    newest = next(folder for folder in (copy / "checkpoints").iterdir() if folder.name.startswith("step-00000002"))
    victim = newest / ("manifest.json" if damage == "manifest gone" else "learner.safetensors")
    content = victim.read_bytes()
    match damage:
        case "cut short":
            victim.write_bytes(content[: len(content) // 2])
        case "one byte altered":
            victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case _:
            victim.unlink()
    assert main(["export", str(copy), "--json"]) == 21
    failed = json.loads(capsys.readouterr().out)
    assert "the checkpoint of step 2 is damaged" in failed["error"]
    assert "The newest older one that is intact is of step 1" in failed["error"]
    assert (failed["code"], failed["where"]) == ("checkpoint", str(copy / "checkpoints"))
    assert not (copy / "exports").exists()
    # A dry run reads no content, so it sees everything but an altered byte.
    assert main(["export", str(copy), "--dry-run", "--json"]) == (0 if damage == "one byte altered" else 21)
    capsys.readouterr()
    command = shlex.split(failed["fix"].split("`")[1])
    assert command == ["areal", "export", str(copy), "--step", "1"]
    if damage == "cut short":
        assert main([*command[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 1


def test_an_older_damaged_one_names_a_newer_one_and_without_any_it_says_so(run, tmp_path, capsys):
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    oldest, newest = sorted((tmp_path / "checkpoints").iterdir())
    (oldest / "rng.json").write_text("{")
    assert main(["export", str(tmp_path), "--step", "1", "--json"]) == 21
    failed = json.loads(capsys.readouterr().out)
    assert "The newest one that is intact is of step 2" in failed["error"]
    assert "--step 2" in failed["fix"]
    (newest / "rng.json").write_text("{")
    assert main(["export", str(tmp_path), "--json"]) == 21
    failed = json.loads(capsys.readouterr().out)
    assert "no other in" in failed["error"]
    assert failed["fix"] == "restore one from a copy"
