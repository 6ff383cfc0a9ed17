"""A job on two hosts whose cable is cut: shorter than a lease it goes on, longer and both sides end what they run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import command_lines, eventually, variables
from two_hosts import two_hosts

import areal
from areal.infra.jobs.checks import RunFacts
from areal.infra.jobs.compile import compile_plan
from areal.infra.jobs.config import JobConfig, NetworkConfig, RoleConfig, SlurmConfig
from areal.infra.jobs.files import JobFolder
from areal.infra.jobs.order import LOST

LEASE_SECONDS = 6.0
RANK = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
Path(folder, f"began-{os.environ['RANK']}-{os.environ['AREAL_LAUNCH_START']}").touch()
while not Path(folder, "end").exists():
    time.sleep(0.05)
"""
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


class Job:
    """Two runners of one rank each, on hosts of their own."""

    def __init__(self, hosts, folder):
        self.notes = folder / "notes"
        self.notes.mkdir()
        config = JobConfig(
            backend="slurm",  # whose runners find addresses of several hosts; nothing is submitted
            name="cut",
            directory=str(folder / "jobs"),
            grace_seconds=2,
            roles={"trainer": RoleConfig(count=2, command=(sys.executable, "-c", RANK, str(self.notes)))},
            network=NetworkConfig(lease_seconds=LEASE_SECONDS, meet_seconds=60),
            slurm=SlurmConfig(signal_seconds=100),
        )
        facts = RunFacts(
            config="", python=sys.executable, working_folder=str(Path.cwd()), version=areal.__version__
        )  # fmt: skip
        self.plan = compile_plan(config, facts, {})
        self.folder = JobFolder(Path(self.plan.folder))
        self.folder.prepare(self.plan, {})
        self.runners = []
        for node in range(2):
            words = [sys.executable, "-m", "areal", "node", "--plan", self.folder.plan_path, "--role", "trainer"]
            with (folder / f"runner-{node}.log").open("wb") as log:
                command = hosts.command(node, *words, "--node", node, "--life", 0)
                self.runners.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def began(self):
        """Return (rank, start) of every rank that was started."""
        return sorted(path.name.removeprefix("began-") for path in self.notes.iterdir() if path.name != "end")

    def left(self):
        """Return the processes of the job that are alive, runners aside."""
        own, mine = {runner.pid for runner in self.runners}, self.plan.id
        alive = [(pid, words) for pid, words in command_lines() if variables(pid).get("AREAL_JOB_ID") == mine]
        return [words for pid, words in alive if pid not in own]

    def close(self):
        for runner in self.runners:
            runner.kill()
            runner.wait()


@pytest.fixture
def hosts():
    with two_hosts() as made:
        yield made


@pytest.fixture
def job(hosts, tmp_path):
    started = Job(hosts, tmp_path)
    try:
        assert eventually(lambda: len(started.began()) == 2, 60)
        yield started
    finally:
        started.close()


@pytest.mark.fault(
    row=37,
    injected="the cable between two hosts of a job is cut for half a lease",
    seen="both ranks run on in their first start, the job ends with 0",
)
def test_a_cut_that_is_shorter_than_a_lease_is_not_noticed(hosts, job):
    with hosts.cut():
        time.sleep(LEASE_SECONDS / 2)
    time.sleep(LEASE_SECONDS)
    assert [runner.poll() for runner in job.runners] == [None, None]
    (job.notes / "end").touch()
    assert [runner.wait(60) for runner in job.runners] == [0, 0]
    assert job.began() == ["0-0", "1-0"]
    assert job.left() == []


@pytest.mark.fault(
    row=37,
    injected="the cable between two hosts of a job is cut for longer than a lease",
    seen="both runners end their rank and themselves with 69, so that no two trainers go on; no process is left",
)
def test_a_cut_that_is_longer_than_a_lease_ends_both_sides(hosts, job):
    with hosts.cut():
        codes = [runner.wait(60) for runner in job.runners]
        assert codes == [LOST, LOST]
        assert eventually(lambda: not job.left(), 60), job.left()
    first, second = (job.folder.status(f"trainer-{node}")["text"] for node in range(2))
    assert "trainer-1 was lost" in first
    assert "the first runner was lost" in second
    assert job.began() == ["0-0", "1-0"]
