"""Ranks and servers on the same nodes and devices (job.colocate), which take turns."""

from __future__ import annotations

import os
import signal

import pytest
import served_runs
from processes import eventually
from served_runs import steps_saved

from areal.infra.jobs.files import ENDED

STEPS = 10
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


def test_processes_that_share_a_node_are_given_the_same_devices(launch, backend):
    if backend.name == "local":
        backend.environment["CUDA_VISIBLE_DEVICES"] = "4,2,7,5"
    try:
        job = launch(
            {
                "trainer": {"count": 4, "per_node": 2, "gpus": 1, "command": "wait_for('ready-*', 2)"},
                "server": {"count": 2, "gpus": 2, "command": "ready(); note('ready'); time.sleep(600)"},
            },
            colocate=["trainer", "server"],
        )
        assert job.wait() == 0, job.said()
    finally:
        backend.environment.pop("CUDA_VISIBLE_DEVICES", None)
    seen = {name: one["environment"] for name, one in job.noted("began").items()}
    given = {name: one["CUDA_VISIBLE_DEVICES"] for name, one in seen.items()}
    for node in range(2):
        mine = {given[f"trainer-{rank}-0"] for rank in (2 * node, 2 * node + 1)} | {given[f"server-{node}-0"]}
        assert len(mine) == 1, given
        assert len(mine.pop().split(",")) == 2
        if backend.name == "slurm":
            ours = [seen[f"{one}-0"] for one in (f"trainer-{2 * node}", f"trainer-{2 * node + 1}", f"server-{node}")]
            assert {(one["SLURM_JOB_NUM_NODES"], one["SLURM_NODEID"]) for one in ours} == {("2", str(node))}
    if backend.name == "local":
        assert (given["server-0-0"], given["server-1-0"]) == ("4,2", "7,5")
    assert eventually(lambda: not job.left()), job.left()


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Parameters of a run whose servers have devices of their own."""
    return served_runs.run_undisturbed(tmp_path_factory.mktemp("apart"), steps=STEPS)


def test_servers_that_lend_their_devices_change_nothing_also_when_a_rank_dies_on_them(
    backend, launch_file, apart, tmp_path
):
    """The double refuses to compute on a device that it has lent, and really loses its weights."""
    section = {"colocate": ["trainer", "server"]}
    job = launch_file(served_runs.described(tmp_path, steps=STEPS, servers={"sleep_level": 2}, job=section))
    eventually(lambda: steps_saved(tmp_path) >= 4 or job.folder.state().get("state") in ENDED, 300)
    os.kill(job.ranks()[1], signal.SIGKILL)
    assert job.wait(300) == 0, job.said()
    assert job.starts() == 2
    assert len(served_runs.rewards(tmp_path, STEPS)) == STEPS
    assert served_runs.largest_difference(served_runs.trained(tmp_path), apart) < 1e-5
    assert eventually(lambda: not job.left(), 60), job.left()
