"""A job whose learner and server have one device in turn: each frees it for the other, whoever is killed meanwhile.

Device and server are doubles: each process notes what it holds in one file, and more than the device has ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest
import served_runs
from processes import eventually
from served_runs import steps_saved

from areal.infra.jobs.files import ENDED

CONTRACT = Path(__file__).resolve().parents[3] / "engine" / "contract"
STEPS, WINDOW = 40, 8
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]


@pytest.fixture
def ledger(monkeypatch):
    """The module of the double; see there."""
    monkeypatch.syspath_prepend(str(CONTRACT))
    import device_ledger

    yield device_ledger
    del sys.modules["device_ledger"]


def described(folder, *, model, shares, steps=STEPS):
    """A learner of one process and a server; shares: on one device, whose memory is accounted for in a file."""
    start = folder / "start"
    start.mkdir()
    # Read by every Python of the job; the server's program has an import path of its own.
    (start / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if sys.orig_argv[1:4] == ['-m', 'areal', 'train']:\n"
        f"    sys.path.append({str(CONTRACT)!r})\n"
        "    import device_ledger\n"
        "    device_ledger.account_for_learner(os.environ['AREAL_TEST_DEVICE'])\n"
    )
    roles = {name: {"count": 1, "gpus": int(shares), "max_restarts": 6} for name in ("trainer", "server")}
    job = {"roles": roles}
    if shares:
        environment = {**served_runs.QUIET, "PYTHONPATH": str(start), "AREAL_TEST_DEVICE": str(folder / "device")}
        job |= {"colocate": ["trainer", "server"], "environment": environment}
    servers = {"sleep_level": 2, "sleep_learner": True} if shares else {}
    return served_runs.described(
        folder, steps=steps, model=model, servers=servers, job=job, more={"archon": None}
    )  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A model that knows what an answer looks like."""
    return served_runs.warm_start(tmp_path_factory.mktemp("warm"))


def kill_once_it_has_the_device(ledger, job, folder, victim, *, holder):
    """Kill the server, or the learner, when `holder` has the device."""
    (pid,) = served_runs.servers_of(job) if victim == "server" else job.ranks().values()
    deadline = time.monotonic() + 100
    while set(ledger.read(folder / "device")[0]) != {holder}:
        assert time.monotonic() < deadline, job.said()
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)


def test_the_device_is_never_overdrawn_and_the_reward_rises_while_server_and_learner_are_killed(
    backend, launch_file, ledger, warm, tmp_path
):
    if backend.name != "local":
        pytest.skip("the doubles note what they hold under process ids of one machine")
    backend.environment["CUDA_VISIBLE_DEVICES"] = "0"
    try:
        job = launch_file(described(tmp_path, model=warm, shares=True))
    finally:
        backend.environment.pop("CUDA_VISIBLE_DEVICES")
    for step, victim, holder in ((4, "server", "server"), (8, "server", "learner"), (12, "learner", "server"),
                                 (16, "learner", "learner")):  # fmt: skip
        eventually(lambda least=step: steps_saved(tmp_path) >= least or job.folder.state().get("state") in ENDED, 300)
        kill_once_it_has_the_device(ledger, job, tmp_path, victim, holder=holder)
    assert job.wait(600) == 0, job.said()
    assert job.starts() == 3, "the learner was killed twice"
    _, log = ledger.read(tmp_path / "device")
    assert max(total for *_, total in log) <= ledger.LIMIT
    assert len({pid for who, pid, *_ in log if who == "server"}) >= 3, "the server was killed twice"
    assert len({pid for who, pid, *_ in log if who == "learner"}) == 3
    found = served_runs.rewards(tmp_path, STEPS)
    assert fmean(found[-WINDOW:]) > fmean(found[:WINDOW]) + 0.05, found
    (tmp_path / "apart").mkdir()
    apart = served_runs.run_undisturbed(tmp_path / "apart", described, model=warm, shares=False)
    assert served_runs.largest_difference(served_runs.trained(tmp_path), apart) < 1e-5
    assert eventually(lambda: not job.left(), 60), job.left()
