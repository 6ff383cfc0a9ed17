"""What a run finds after kill -9, on a full disk, and where writing is not allowed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from areal.api import CheckpointError
from areal.infra.checkpoint.store import CheckpointStore

_HERE = Path(__file__).parent


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=2,
    injected="SIGKILL at each Python-level file operation of a save, also in the middle of every write",
    seen="the old or the new checkpoint, complete; leftovers removed",
)
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


@pytest.fixture
def syscall_report(tmp_path, fork_server, request):
    """What is found after each system call of a save was hit by `request.param`."""
    job = fork_server.start(_HERE / "save_under_faults.py", [str(tmp_path), request.param])
    assert job.wait(240) == 0, job.stderr
    report = json.loads(job.stdout)
    if report["unsupported"]:
        pytest.skip(report["unsupported"])
    # The calls that make a save what it is: a folder of its own, flushed before it is renamed, then the old one goes.
    calls, steps = report["calls"], report["steps"]
    assert calls[0] == "mkdir"
    assert {"openat", "write", "fsync"} <= set(calls[: calls.index("rename")])
    assert calls[-1] == "rmdir"
    assert len(steps) == len(calls) + 1 > 20
    return report


@pytest.mark.timeout(300)
@pytest.mark.fault(
    row=2,
    injected="SIGKILL at each of the file-changing system calls of a save, by ptrace",
    seen="up to the rename the previous checkpoint loads, from then on the new one; leftovers are removed and named",
)
@pytest.mark.parametrize("syscall_report", ["SIGKILL"], indirect=True)
def test_kill_9_at_any_system_call_of_a_save_leaves_the_old_or_the_new_checkpoint(syscall_report):
    assert syscall_report["steps"] == sorted(syscall_report["steps"])
    assert set(syscall_report["steps"]) == {2, 3}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.fault(
    row=3,
    injected="each file-changing system call of a save fails in turn with ENOSPC, then with EIO, by ptrace",
    seen="a CheckpointError that names the folder, or a warning when only the removal of an old checkpoint failed; the "
    "previous checkpoint loads and the next save works",
)
@pytest.mark.parametrize("syscall_report", ["ENOSPC", "EIO"], indirect=True)
def test_a_disk_that_refuses_any_system_call_of_a_save_costs_at_most_that_save(syscall_report):
    assert set(syscall_report["steps"]) == {2, 3}


@pytest.fixture(scope="module")
def disk_report(tmp_path_factory):
    command = [sys.executable, str(_HERE / "full_disk.py"), str(tmp_path_factory.mktemp("disk"))]
    # In a mount namespace of its own, so that nothing stays mounted whatever happens; where that is not permitted
    # mounting is not either, and the program says so.
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0:
        command = ["unshare", "--mount", *command]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=3,
    injected="a save onto a real 4 MB file system that is full, then read-only",
    seen="a CheckpointError that says what to do; older checkpoints intact; the next save works once there is room",
)
def test_a_real_full_disk_is_reported_and_leaves_older_checkpoints_intact(disk_report):
    if not disk_report["mounted"]:
        pytest.skip("mounting a small file system is not permitted here")
    report = disk_report["disk"]
    messages = dict(report["messages"])
    assert "nothing was written" in messages.pop("preflight")
    assert set(messages) == {"tensors", "json", "callable"}
    for message in messages.values():
        assert "No space left on device" in message
        assert "Older checkpoints are intact" in message
    assert report["entries"] == ["step-00000001.000001"]
    assert report["intact"]
    assert report["steps"] == [1, 2]
    assert "Read-only file system" in report["read_only"]


@pytest.mark.exhaustive
def test_a_file_size_limit_is_reported_like_a_full_disk(disk_report):
    assert "checkpoint of step 2 was not written" in disk_report["limit"]["message"]
    assert "too large" in disk_report["limit"]["message"]
    assert disk_report["limit"]["entries"] == ["step-00000001.000001"]


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
