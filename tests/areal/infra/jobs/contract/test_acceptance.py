"""What a cluster has to stand: GRPO of two ranks and two servers learns on, whatever is killed.

A server is killed, then a node of the trainer, then the whole job has to make room. `bash scripts/try_cluster.sh slurm`
runs this by hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from statistics import fmean

import pytest
import served_runs
from processes import eventually
from served_runs import steps_saved

from areal.infra.jobs.files import ENDED

STEPS = 40
WINDOW = 8
"""Steps over which a reward is averaged."""
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A model that knows what an answer looks like."""
    return served_runs.warm_start(tmp_path_factory.mktemp("warm"))


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    """Parameters of the synchronous run as a local job that nothing happens to."""
    return served_runs.run_undisturbed(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, model=warm)


def injure(backend, job, folder):
    """Kill a server, then a node of the trainer, then ask the job to make room; return the steps at which."""
    when = []

    def wait_for(step):
        eventually(lambda: steps_saved(folder) >= step or job.folder.state().get("state") in ENDED, 400)
        assert steps_saved(folder) >= step, job.said()
        when.append(steps_saved(folder))

    wait_for(6)
    before = served_runs.servers_of(job)
    assert len(before) == 2, before
    os.kill(before[0], signal.SIGKILL)
    wait_for(12)
    assert job.starts() == 1, "the ranks have nothing to do with it"
    try:
        backend.lose_node(job, "trainer", 1)
        assert eventually(lambda: job.starts() == 2, 200), job.said()
        wait_for(steps_saved(folder) + 4)
    finally:
        backend.bring_back()
    backend.make_room(job)
    assert eventually(lambda: job.starts() == 3, 200), job.said()
    wait_for(steps_saved(folder) + 1)
    return when


@pytest.mark.parametrize("bound", [0, 1])
@pytest.mark.fault(
    row=37,
    injected="GRPO with two servers loses a server, then a node, then its whole allocation",
    seen="the reward rises on; with bound 0 no parameter differs from an undisturbed run by 1e-5; no process is left",
)
def test_the_reward_rises_while_a_server_a_node_and_the_allocation_are_lost(
    backend, launch_file, request, warm, tmp_path, bound
):
    job = launch_file(served_runs.described(tmp_path, steps=STEPS, bound=bound, model=warm))
    when = injure(backend, job, tmp_path)
    assert job.wait(600) == 0, job.said()
    assert job.starts() == 3
    found = served_runs.rewards(tmp_path, STEPS)
    means = [round(fmean(found[start : start + WINDOW]), 3) for start in range(0, STEPS, WINDOW)]
    report = {"backend": backend.name, "bound": bound, "injured at": when[:-1], "reward": means}
    if bound == 0:
        expected = request.getfixturevalue("undisturbed")
        report["largest difference"] = served_runs.largest_difference(served_runs.trained(tmp_path), expected)
    sys.stdout.write(json.dumps(report) + "\n")
    # Another server, another batch: only the order of sums may differ.
    assert report.get("largest difference", 0.0) < 1e-5
    assert means[-1] > means[0] + 0.05, report
    assert eventually(lambda: not job.left(), 60), job.left()
