"""A runner that does not fit the others says why and starts nothing; what nodes have is read, not guessed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import areal
from areal.api import ConfigError, EngineError
from areal.infra.jobs.backend import get_backend
from areal.infra.jobs.checks import RunFacts
from areal.infra.jobs.compile import compile_plan
from areal.infra.jobs.config import JobConfig, NetworkConfig, RoleConfig
from areal.infra.jobs.files import JobFolder
from areal.infra.jobs.surroundings import choose_port, deal_devices, node_environment, visible_devices


@pytest.fixture
def prepared(tmp_path):
    """Returns a function that writes the folder of a job of two nodes and returns its plan."""

    def prepare(**changes):
        job = JobConfig(
            name="j",
            directory=str(tmp_path),
            network=NetworkConfig(meet_seconds=0.5),
            roles={"trainer": RoleConfig(count=2, command=("/bin/touch", str(tmp_path / "ran")))},
        )
        facts = RunFacts(config="", python=sys.executable, working_folder=str(tmp_path), version=areal.__version__)
        plan = replace(compile_plan(job, facts, {}), **changes)
        JobFolder(Path(plan.folder)).prepare(plan, {})
        return plan

    return prepare


def run_node(plan, *words):
    command = [sys.executable, "-m", "areal", "node", "--plan", Path(plan.folder, "plan.json"), "--life", "0", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    path = Path(plan.folder, "status", f"trainer-{words[1]}.json")
    return done, json.loads(path.read_text()) if path.exists() else None


@pytest.mark.exhaustive
def test_a_runner_of_another_version_starts_nothing(prepared, tmp_path):
    plan = prepared(version="0.0.1")
    done, status = run_node(plan, "--node", "0")
    assert done.returncode == status["exit_code"] == 78
    assert f"areal {areal.__version__} here, 0.0.1 where the job was submitted" in status["text"]
    assert not (tmp_path / "ran").exists()


def test_a_runner_starts_nothing_with_another_configuration_than_was_submitted(prepared, tmp_path):
    plan = prepared(config="seed: 1\n")
    Path(plan.folder, "run.yaml").write_text("seed: 2\n")
    done, status = run_node(plan, "--node", "0")
    assert done.returncode == status["exit_code"] == 78
    assert "run.yaml is not the configuration that was submitted" in status["text"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.exhaustive
def test_a_runner_that_does_not_see_the_file_of_the_first_one_says_so(prepared):
    plan = prepared()
    done, status = run_node(plan, "--node", "1")
    assert done.returncode == 78
    assert "meet.json was not written by the first runner within 0.5 s" in status["text"]


@pytest.mark.exhaustive
def test_a_first_runner_without_the_others_names_them(prepared):
    plan = prepared()
    done, status = run_node(plan, "--node", "0")
    assert done.returncode == 69
    assert "trainer-1 did not come within" in status["text"]


def test_a_private_file_that_others_can_read_is_refused(prepared):
    plan = prepared()
    Path(plan.folder, "private.json").chmod(0o644)
    done, status = run_node(plan, "--node", "0")
    assert done.returncode == status["exit_code"] == 2
    assert "can be read by others" in done.stderr


def test_nodes_that_the_plan_does_not_have_are_refused(prepared):
    done, status = run_node(prepared(), "--node", "2")
    assert (done.returncode, status) == (2, None)
    assert "--node is 2, and role trainer has 2 nodes" in done.stderr


def test_little_is_kept_of_the_environment_of_a_node():
    inherited = {"HOME": "/h", "SLURM_PROCID": "3", "TOKEN": "x", "PYTHONPATH": "/p", "CUDA_VISIBLE_DEVICES": "1"}
    assert node_environment(inherited) == {"HOME": "/h", "SLURM_PROCID": "3", "CUDA_VISIBLE_DEVICES": "1"}


def test_devices_keep_the_order_and_the_names_that_the_scheduler_gave(prepared):
    role = replace(prepared().role("trainer"), name="server", gpus=2, per_node=2)
    devices = visible_devices({"CUDA_VISIBLE_DEVICES": "GPU-b,3,GPU-a,1"})
    assert deal_devices(role, devices) == ["GPU-b,3", "GPU-a,1"]
    assert deal_devices(replace(role, name="trainer", gpus=1), devices) == ["GPU-b,3"] * 2
    with pytest.raises(ConfigError, match=r"needs 4 devices on this node .* gave 3: a,b,c"):
        deal_devices(role, ["a", "b", "c"])


def test_ports_are_taken_from_the_range_that_is_given():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        low = 20000 + probe.getsockname()[1] % 5000
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", low))
        taken.listen()
        assert choose_port("127.0.0.1", f"{low}-{low + 5}") in range(low + 1, low + 6)
        with pytest.raises(EngineError, match="are taken"):
            choose_port("127.0.0.1", f"{low}-{low}")
    with pytest.raises(ConfigError, match="the kernel hands out"):
        choose_port("127.0.0.1", "1024-65535")


def test_a_scheduler_that_does_not_answer_makes_a_job_unknown(prepared, monkeypatch, tmp_path):
    plan = prepared(backend="slurm")
    folder, backend = JobFolder(Path(plan.folder)), get_backend("slurm")
    assert backend.state(plan, folder) == "gone"
    folder.set_state("submitted", identity="17")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backend.state(plan, folder) == "unknown"
    (tmp_path / "squeue").write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"
    )
    (tmp_path / "squeue").chmod(0o755)
    assert backend.state(plan, folder) == "unknown"


def test_a_launch_on_another_host_is_not_taken_for_gone(prepared):
    plan = prepared()
    folder, backend = JobFolder(Path(plan.folder)), get_backend("local")
    folder.set_state("running", identity="elsewhere:17:4711")
    assert backend.state(plan, folder) == "unknown (launched on elsewhere)"
    folder.set_state("ended")
    assert backend.state(plan, folder) == "gone"
