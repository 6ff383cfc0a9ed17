"""A real run on each backend: ranks are killed, nodes are lost, the job is preempted, and the model is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from served_runs import QUIET, steps_saved

ROOT = Path(__file__).resolve().parents[5]
STEPS = 24
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


def described(folder, job=None):
    """The example of two ranks, short and synchronous, so that an interruption may change nothing."""
    run = yaml.safe_load((ROOT / "examples/math/arithmetic_archon.yaml").read_text())
    run |= {"output_dir": str(folder / "run"), "total_train_steps": STEPS, "eval_sets": {}, "job": job}
    run["rollout"] = {"batch_size": 16, "group_size": 4, "max_head_offpolicyness": 0}
    run["checkpoint"] = {"every_steps": 1, "keep": 3}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights of the same run as a plain launch on this machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "areal", "launch", "--ranks", "2", "--", sys.executable, "-m", "areal", "train"]
    done = subprocess.run(
        [*command, described(folder)], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return weights(folder)


def weights(folder):
    return {path.name: path.read_bytes() for path in (folder / "run" / "final").glob("*.safetensors")}


def wait_for_step(job, folder, step):
    wait_until(lambda: steps_saved(folder) >= step, job)


def wait_until(condition, job, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, job.said()
        time.sleep(0.05)


@pytest.mark.fault(
    row=37,
    injected="a synchronous run of two ranks loses a rank, then a node, and is preempted (Slurm)",
    seen="the weights at the end equal those of an undisturbed run byte for byte",
)
def test_a_run_that_is_killed_moved_and_preempted_ends_with_the_same_weights(
    backend, launch_file, undisturbed, tmp_path
):
    section = {
        "name": "j1",
        "directory": str(tmp_path / "jobs"),
        "grace_seconds": 30,
        "environment": QUIET,
        "network": {"lease_seconds": 5},
        "roles": {"trainer": {"count": 2}},
    }
    job = launch_file(described(tmp_path, section))
    wait_for_step(job, tmp_path, 3)
    os.kill(job.ranks()[1], signal.SIGKILL)
    wait_for_step(job, tmp_path, 6)
    assert job.starts() == 2
    try:
        backend.lose_node(job, "trainer", 1)
        # What ran there may live for some seconds more, and so may the start.
        wait_until(lambda: job.starts() == 3, job)
        wait_for_step(job, tmp_path, steps_saved(tmp_path) + 2)
    finally:
        backend.bring_back()
    if backend.name == "slurm":
        backend.preempt(job)
    assert job.wait(400) == 0, job.said()
    assert job.starts() == (4 if backend.name == "slurm" else 3)
    assert weights(tmp_path) == undisturbed
    wait_until(lambda: not job.left(), job, seconds=10)
