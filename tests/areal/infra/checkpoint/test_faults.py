"""What a run finds after kill -9, on a full disk, and where writing is not allowed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from areal.api import CheckpointError
from areal.infra.checkpoint.store import CheckpointStore

_HERE = Path(__file__).parent


def test_kill_9_at_any_file_operation_of_a_save_leaves_the_old_or_the_new_checkpoint_complete(tmp_path):
    done = subprocess.run(
        [sys.executable, str(_HERE / "kill_during_save.py"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    outcomes = report["outcomes"]
    assert report["finished"]
    # Old until the rename, new from then on, and both cases occurred in numbers that show real boundaries were hit.
    assert outcomes == sorted(outcomes)
    assert outcomes.count(2) > 20
    assert outcomes.count(3) > 5
    assert report["leftovers"] > 15


def test_a_real_full_disk_is_reported_and_leaves_older_checkpoints_intact(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs the program unshare")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, str(_HERE / "full_disk.py"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"mounting a small file system is not permitted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "nothing was written" in report["messages"].pop("preflight")
    for message in report["messages"].values():
        assert "No space left on device" in message
        assert "Older checkpoints are intact" in message
    assert report["entries"] == ["step-00000001.000001"]
    assert report["intact"]
    assert report["steps"] == [1, 2]
    assert "Read-only file system" in report["read_only"]


def test_a_file_size_limit_is_reported_like_a_full_disk(tmp_path):
    script = (
        "import resource, sys, torch; from pathlib import Path\n"
        "from areal.infra.checkpoint.store import CheckpointStore\n"
        "store = CheckpointStore(Path(sys.argv[1]), keep=2)\n"
        "store.save(1, {'a': torch.ones(10)}, {})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "store.save(2, {'a': torch.ones(1_000_000)}, {})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True, text=True, timeout=120
    )
    assert "CheckpointError: checkpoint of step 2 was not written" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001.000001"]
    assert CheckpointStore(tmp_path, keep=2).load_latest().step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_a_checkpoint_error(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, {"a": torch.ones(10)}, {})
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            store.save(2, {"a": torch.ones(10)}, {})
    finally:
        tmp_path.chmod(0o700)
    assert store.load_latest().step == 1
