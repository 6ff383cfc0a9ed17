"""Checkpoints are found, verified, passed over when damaged, and pruned."""

import json
import shutil
import time

import pytest
import torch

from areal.api import CheckpointError
from areal.infra.checkpoint.store import MANIFEST_NAME, CheckpointStore


def _states(step):
    return {"actor": {"weight": torch.full((4, 3), float(step)), "steps": step}, "ledger": [step, "done"]}


def _filled(directory, *steps, keep=10):
    store = CheckpointStore(directory, keep=keep)
    for step in steps:
        store.save(step, _states(step), {"reward": step / 10})
    return store


def test_an_empty_directory_has_no_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path / "new", keep=2)
    assert store.load_latest() is None
    assert store.steps() == []
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        store.load(3)


def test_the_newest_checkpoint_comes_back_with_states_and_meta(tmp_path):
    before = time.time()
    found = _filled(tmp_path, 5, 10).load_latest()
    assert (found.step, found.meta, found.skipped) == (10, {"reward": 1.0}, ())
    assert before <= found.created_unix <= time.time()
    assert torch.equal(found.load("actor")["weight"], torch.full((4, 3), 10.0))
    assert found.load("ledger") == [10, "done"]
    with pytest.raises(CheckpointError, match="'critic'"):
        found.load("critic")


def test_a_callable_may_write_any_files_and_subfolders(tmp_path):
    def write(folder):
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")

    path = CheckpointStore(tmp_path, keep=1).save(1, write, {})
    assert (CheckpointStore(tmp_path, keep=1).load(1).path / "model" / "config.json").read_text() == "{}"
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    assert manifest["schema_version"] == 1
    assert manifest["files"]["model/config.json"]["bytes"] == 2


def test_only_the_newest_are_kept(tmp_path):
    assert _filled(tmp_path, 1, 2, 3, 4, keep=2).steps() == [3, 4]


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path):
    store = _filled(tmp_path, 1, 2, keep=2)
    (next(tmp_path.glob("step-00000002.*")) / "ledger.json").unlink()
    store.save(3, _states(3), {})
    assert store.steps() == [1, 2, 3]
    store.save(4, _states(4), {})
    assert store.steps() == [3, 4]


def test_a_run_taken_back_to_an_earlier_step_continues_from_what_it_wrote_last(tmp_path):
    store = _filled(tmp_path, 10, 20, 30)
    store.save(20, {"actor": "rewritten"}, {})
    assert store.load_latest().load("actor") == "rewritten"
    assert store.load(20).load("actor") == "rewritten"
    assert store.load(30).load("ledger") == [30, "done"]


def _flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(data)


@pytest.mark.fault(
    row=4,
    injected="one bit flipped, in turn at bytes of every file of a checkpoint",
    seen="noticed each time; the checkpoint before is loaded",
)
def test_one_flipped_bit_anywhere_is_noticed_and_the_previous_checkpoint_is_used(tmp_path):
    _filled(tmp_path / "good", 1, 2)
    newest = next((tmp_path / "good").glob("step-00000002.*"))
    positions = {file.name: range(0, file.stat().st_size, 7) for file in newest.iterdir()}
    # In the manifest every single byte counts: nothing else protects it.
    positions[MANIFEST_NAME] = range((newest / MANIFEST_NAME).stat().st_size)
    assert set(positions) == {"actor.json", "actor.safetensors", "ledger.json", MANIFEST_NAME}
    store = CheckpointStore(tmp_path / "good", keep=10)
    for name, offsets in positions.items():
        intact = (newest / name).read_bytes()
        for offset in offsets:
            _flip(newest / name, offset)
            found = store.load_latest()
            assert found.step == 1, (name, offset)
            assert newest.name in found.skipped[0]
            assert name in found.skipped[0]
            (newest / name).write_bytes(intact)
    assert store.load_latest().step == 2


@pytest.mark.fault(
    row=4,
    injected="files of a checkpoint cut short, removed or emptied, its manifest damaged",
    seen="the reason is named and logged; the checkpoint before is loaded",
)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "actor.safetensors").unlink(), "'actor.safetensors' is missing"),
        (lambda folder: (folder / "ledger.json").write_text(""), "'ledger.json' has 0 bytes, expected"),
        (lambda folder: (folder / MANIFEST_NAME).unlink(), "never completed"),
        (
            lambda folder: (folder / MANIFEST_NAME).write_bytes((folder / MANIFEST_NAME).read_bytes()[:50]),
            "not readable",
        ),
        (lambda folder: (folder / MANIFEST_NAME).write_text(""), "not readable"),
        (lambda folder: (folder / MANIFEST_NAME).write_text("[]"), "not readable"),
        (lambda folder: (folder / MANIFEST_NAME).write_text('{"schema_version":1}'), "lacks fields"),
        (lambda folder: (folder / MANIFEST_NAME).write_bytes((folder / MANIFEST_NAME).read_bytes() + b" "), "altered"),
    ],
)
def test_the_reason_for_falling_back_is_named(tmp_path, damage, reason, caplog):
    store = _filled(tmp_path, 1, 2)
    folder = next(tmp_path.glob("step-00000002.*"))
    damage(folder)
    found = store.load_latest()
    assert found.step == 1
    assert folder.name in found.skipped[0]
    assert reason in found.skipped[0]
    assert reason in caplog.text
    with pytest.raises(CheckpointError, match="step-00000002"):
        store.load(2)


@pytest.mark.fault(
    row=4,
    injected="all checkpoints damaged",
    seen="refused with every reason instead of starting anew",
)
def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew_silently(tmp_path):
    store = _filled(tmp_path, 1, 2)
    for file in tmp_path.glob("*/actor.json"):
        file.write_text("{}")
    with pytest.raises(CheckpointError, match=r"(?s)no intact checkpoint.*step-00000002.*step-00000001"):
        store.load_latest()


@pytest.mark.fault(
    row=34,
    injected="the newest checkpoint has a higher schema version",
    seen="refused with both versions and what to do; it is not pruned",
)
def test_a_checkpoint_of_a_newer_program_is_refused_and_not_pruned(tmp_path):
    store = _filled(tmp_path, 1, 2, keep=2)
    file = next(tmp_path.glob("step-00000002.*")) / MANIFEST_NAME
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "schema_version": 2, "digest": "of another kind"}))
    with pytest.raises(CheckpointError, match=r"schema version 2, this program reads up to 1: update areal"):
        store.load_latest()
    store.save(3, _states(3), {})
    assert store.steps() == [2, 3]


def test_a_failed_write_leaves_only_the_older_checkpoints(tmp_path):
    store = _filled(tmp_path, 1)

    def write(folder):
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 2 was not written.*No space left.*Older checkpoints are intact"):
        store.save(2, write, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001.000001"]
    assert store.load_latest().step == 1


def test_a_state_that_cannot_be_saved_leaves_nothing_behind(tmp_path):
    store = _filled(tmp_path, 1)
    with pytest.raises(TypeError, match=r"actor\.sampler"):
        store.save(2, {"actor": {"sampler": object()}}, {})
    for meta in ({"reward": float("nan")}, {"x": object()}):
        with pytest.raises(ValueError, match="meta must be JSON"):
            store.save(2, _states(2), meta)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001.000001"]


def test_too_little_free_space_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    store = _filled(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_100_000))
    store.save(2, {"a": torch.zeros(1000)}, {})
    with pytest.raises(CheckpointError, match=r"needs about 1\.[0-9] MB .* has 1\.1 MB free: nothing was written"):
        store.save(3, {"a": torch.zeros(100_000)}, {})
    with pytest.raises(CheckpointError, match="nothing was written"):
        store.save(3, lambda folder: pytest.fail(f"wrote to {folder}"), {}, expected_bytes=10**9)
    assert store.steps() == [1, 2]


@pytest.mark.fault(
    row=3,
    injected="no room for another checkpoint while more are kept than the run now asks for",
    seen="those beyond `keep` go first, and the save finds its room",
)
def test_checkpoints_beyond_keep_make_room_for_the_next_one(tmp_path, monkeypatch):
    _filled(tmp_path, 1, 2, 3)
    real = shutil.disk_usage(tmp_path)

    def usage(path):
        return real._replace(free=0 if len(list(tmp_path.glob("step-*"))) > 1 else real.free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(CheckpointError, match="nothing was written"):
        CheckpointStore(tmp_path, keep=3).save(4, {"a": torch.ones(3)}, {})
    store = CheckpointStore(tmp_path, keep=1)
    store.save(4, {"a": torch.ones(3)}, {})
    assert store.steps() == [4]


def test_a_directory_that_cannot_be_made_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot use"):
        CheckpointStore(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStore(tmp_path, keep=0)


def test_files_that_are_no_checkpoints_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-old").mkdir()
    store = _filled(tmp_path, 1, 2, 3, keep=1)
    assert store.steps() == [3]
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "step-old").exists()
