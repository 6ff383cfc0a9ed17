"""The three backends as tests see them: something that launches a job, loses a node, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray_cluster
import slurm_cluster
import yaml
from processes import command_lines, eventually, variables

from areal.infra.jobs.files import ENDED, JobFolder
from areal.infra.jobs.plan import read_plan

ROOT = Path(__file__).resolve().parents[5]
PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder, role = Path(sys.argv[1]), os.environ["AREAL_JOB_ROLE"]
rank = int(os.environ.get("RANK") or os.environ["AREAL_JOB_INDEX"])
start = int(os.environ.get("AREAL_LAUNCH_START", "0"))
def note(what, **more):
    path = folder / f"{what}-{role}-{rank}-{start}.json"
    path.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), "time": time.time(), **more}))
    path.with_suffix(".new").rename(path)
def ready():
    path = Path(os.environ["AREAL_JOB_READY_FILE"])
    path.with_suffix(".new").write_text(json.dumps({"url": f"http://{os.environ['AREAL_JOB_ADDRESS']}:1"}))
    path.with_suffix(".new").rename(path)
def wait_for(pattern, count=1):
    while len(list(folder.glob(pattern))) < count:
        time.sleep(0.02)
def save_and_end(*_):
    note("saved")
    sys.exit(143)
note("began", environment=dict(os.environ), arguments=sys.argv[2:])
"""


class Launched:
    """A job on its way."""

    def __init__(self, backend, process, folder, notes):
        self.backend, self.process, self.folder, self.notes = backend, process, JobFolder(folder), notes

    def noted(self, what):
        """Return what processes have noted under this name, by role, index and start."""
        return {
            path.stem.removeprefix(f"{what}-"): json.loads(path.read_text())
            for path in sorted(self.notes.glob(f"{what}-*.json"))
        }

    def wait(self, seconds=60.0):
        """Wait for the end of the job; return its exit code."""
        ended = eventually(lambda: self.folder.state().get("state") in ENDED, seconds)
        assert ended, f"{self.folder.state()}\n{self.said()}"
        code = self.process.wait(60)
        state = self.folder.state()
        assert self.backend.name == "slurm" or code == state["exit_code"]
        return state["exit_code"]

    def said(self):
        """Return what everything printed, for messages of failed assertions."""
        files = [*self.folder.logs.rglob("*.log"), self.folder.path / "launch.out"]
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in files if path.exists())

    def runners(self):
        """Return (pid, role, node) of the node runners on this machine."""
        found = []
        for pid, words in command_lines():
            if str(self.folder.plan_path) in words and "--role" in words and "node" in words[:5]:
                role = words[words.index("--role") + 1]
                node = words[words.index("--node") + 1] if "--node" in words else variables(pid).get("SLURM_PROCID")
                if node is not None and words[0] == self.backend.python:
                    found.append((pid, role, int(node)))
        return found

    def ranks(self):
        """Return the pid of each rank of the trainer, by rank: the processes that have no guard below them."""
        mine = read_plan(self.folder.plan_path).id
        found = {}
        for pid, words in command_lines():
            own = variables(pid)
            is_rank = own.get("AREAL_JOB_ID") == mine and "RANK" in own and "train" in words
            if is_rank and not any("guard.py" in word for word in words):
                found[int(own["RANK"])] = pid
        return found

    def starts(self):
        """Return how often ranks were started."""
        return len(list(self.folder.logs.glob("start-*-*")))

    def left(self):
        """Return all processes of the job that are alive, on all its nodes."""
        plan = read_plan(self.folder.plan_path)
        mine = []
        for pid, words in command_lines():
            if pid != self.process.pid and (
                str(self.folder.plan_path) in words or variables(pid).get("AREAL_JOB_ID") == plan.id
            ):
                mine.append((pid, words))
        return mine

    def command(self, *words):
        """Run `areal job ... --json` on it."""
        done = self.backend.areal("job", words[0], self.folder.path.name, "--directory", self.folder.path.parent,
                                  "--json", *words[1:])  # fmt: skip
        return done.returncode, json.loads(done.stdout)


class Local:
    """Nodes are runners on this machine."""

    name = "local"
    lost_again = ""

    def __init__(self, folder):
        self.folder = folder
        self.environment = dict(os.environ)
        self.python = sys.executable
        self.overrides = []

    def areal(self, *words, **options):
        """Run the command line."""
        command = [self.python, "-m", "areal", *map(str, words)]
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120,
            **options,
        )  # fmt: skip

    def lose_node(self, job, role, node):
        """Make a node of a role disappear without notice."""
        for pid, its_role, its_node in job.runners():
            if (its_role, its_node) == (role, node):
                os.kill(pid, signal.SIGKILL)

    def bring_back(self):
        """Give back nodes that were lost."""

    def preempt(self, job):
        """Ask the job to make room, as the scheduler does."""
        pytest.skip("nothing preempts a local job")

    def make_room(self, job):
        """Take all that the job has, as gently as this backend can; the job gets something else and goes on."""
        self.lose_node(job, "trainer", 0)

    def close(self):
        """End the cluster."""


class Slurm(Local):
    """Real daemons on this machine."""

    name = "slurm"

    def __init__(self, folder):
        super().__init__(folder)
        self.cluster = slurm_cluster.SlurmCluster(folder)
        self.environment = self.cluster.environment

    def lose_node(self, job, role, node):
        for _, its_role, its_node in job.runners():
            if (its_role, its_node) == (role, node):
                break
        else:
            raise AssertionError("the runner is not there")
        pid = next(pid for pid, one, other in job.runners() if (one, other) == (role, node))
        self.lost = variables(pid)["SLURMD_NODENAME"]
        self.cluster.ask("scontrol", "update", f"nodename={self.lost}", "state=down", "reason=test")

    def bring_back(self):
        self.cluster.ask("scontrol", "update", f"nodename={self.lost}", "state=resume", check=False)

    def preempt(self, job):
        self.cluster.ask("scancel", "--batch", "--signal=USR1", job.folder.state()["identity"])

    def make_room(self, job):
        self.preempt(job)

    def close(self):
        self.cluster.close()


class Ray(Local):
    """A real cluster of several nodes on this machine; launches run where Ray is installed."""

    name = "ray"

    def __init__(self, folder):
        super().__init__(folder)
        self.python = str(ray_cluster.PYTHON)
        self.environment["RAY_USAGE_STATS_ENABLED"] = "0"
        self.cluster = ray_cluster.RayCluster(4, self.environment, folder / "cluster.log")
        self.overrides = [f"job.ray.address={self.cluster.address}"]

    def lose_node(self, job, role, node):
        pid = next(pid for pid, one, other in job.runners() if (one, other) == (role, node))
        self.cluster.remove(pid)

    def bring_back(self):
        self.cluster.add()

    def preempt(self, job):
        pytest.skip("Ray preempts by taking nodes away")

    def close(self):
        self.cluster.close()


BACKENDS = {"local": Local, "ray": Ray, "slurm": Slurm}
ABSENT = {"ray": ray_cluster.missing, "slurm": slurm_cluster.missing}
KINDS = ["local", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("slurm", "ray"))]


@pytest.fixture(scope="session")
def clusters(tmp_path_factory):
    """Backends that were started, one of each kind for all tests."""
    started = {}
    yield started, tmp_path_factory
    for backend in started.values():
        backend.close()


@pytest.fixture(params=KINDS)
def backend(request, clusters):
    """One of the backends, started on first use."""
    started, factory = clusters
    kind = request.param
    if kind in ABSENT and (reason := ABSENT[kind]()):
        pytest.skip(reason)
    if kind not in started:
        started[kind] = BACKENDS[kind](factory.mktemp(kind))
    return started[kind]


@pytest.fixture
def launch_file(backend, tmp_path):
    """Returns a function that launches a configuration whose job is j1 in tmp_path/jobs."""
    jobs = []

    def run(path):
        folder = tmp_path / "jobs" / "j1"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / "launch.out").open("ab") as out:
            process = subprocess.Popen(
                [backend.python, "-m", "areal", "launch", str(path), "--on", backend.name, *backend.overrides],
                env=backend.environment, cwd=backend.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        job = Launched(backend, process, folder, tmp_path / "notes")
        jobs.append(job)
        if backend.name == "slurm":
            assert process.wait(60) == 0, job.said()
        return job

    yield run
    for job in jobs:
        if job.folder.plan_path.exists() and job.folder.state().get("state") not in ENDED:
            job.command("cancel")
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait(60)


@pytest.fixture
def launch(launch_file, tmp_path):
    """Returns a function that launches programs, given as text, as roles of a job."""

    def run(roles, **section):
        notes = tmp_path / "notes"
        notes.mkdir(exist_ok=True)
        described = {}
        for name, role in roles.items():
            words = [sys.executable, "-c", PRELUDE + role["command"], str(notes), *role.get("arguments", [])]
            described[name] = {key: value for key, value in role.items() if key != "arguments"} | {"command": words}
        job = {
            "name": "j1",
            "directory": str(tmp_path / "jobs"),
            "grace_seconds": 5,
            "network": {"lease_seconds": 2},
            "roles": described,
            **section,
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({"kind": "rl", "job": job}, allow_unicode=True))
        return launch_file(path)

    return run
