"""A real run on each backend: ranks are killed, nodes are lost, the job is preempted, and the model is the same."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from processes import command_lines, variables

from areal.infra.metrics.logger import read_metrics

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


def steps_saved(folder):
    found = [int(path.name[5:13]) for path in (folder / "run" / "checkpoints").glob("step-*.*[0-9]")]
    return max(found, default=0)


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
        "environment": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"},
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


def test_two_ranks_train_on_what_two_servers_sample_and_one_server_is_killed(backend, launch_file, tmp_path):
    """The servers are ours, behind vLLM's API: started by `areal serve`, found in the job's directory."""
    if backend.name != "local":
        pytest.skip("the server listens at 127.0.0.1 only, at which other nodes do not find it")
    spec = importlib.util.spec_from_file_location("program", ROOT / "tests/areal/engine/contract/vllm_program.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    section = {
        "name": "j1",
        "directory": str(tmp_path / "jobs"),
        "grace_seconds": 30,
        "environment": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"},
        "network": {"meet_seconds": 300},
        "roles": {"trainer": {"count": 2}, "server": {"count": 2, "min_ready": 1}},
    }
    path = described(tmp_path, section)
    run = yaml.safe_load(path.read_text())
    run["rollout"]["engine"] = "vllm"
    run |= {"vllm": {"python": str(program.write_python(tmp_path / "environment" / "python"))}}
    run |= {"servers": {"dtype": "float32", "max_seq_len": 64}}
    path.write_text(yaml.safe_dump(run))
    job = launch_file(path)
    wait_for_step(job, tmp_path, 3)
    servers = [
        pid for pid, words in command_lines()
        if "double.py" in " ".join(words) and variables(pid).get("AREAL_JOB_ROLE") == "server"
        and "guard.py" not in " ".join(words)
    ]  # fmt: skip
    assert len(servers) == 2
    os.kill(servers[0], signal.SIGKILL)
    assert job.wait(400) == 0, job.said()
    assert job.starts() == 1
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert all(values["mismatch/fresh_abs_max"] < 1e-4 for values in steps.values()), steps
    wait_until(lambda: not job.left(), job, seconds=10)
