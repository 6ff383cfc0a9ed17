"""`areal train` killed by SIGKILL anywhere continues to the same bits as a run that was left alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import runs

PLACES = (
    "between the two optimizer steps of step 4",
    "after the last optimizer step of step 4",
    "after the rollouts moved on to step 5",
    "between the two logs of step 4",
    "after step 4, before its checkpoint",
    "before the checkpoint is renamed",
    "before the older checkpoint is removed",
    "after the last step, before the final checkpoint",
)
STEPS = 5

# Many small runs on few cores that others may be using as well.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory, fork_server, request):
    """What became of each run, by the place where it was killed; of the places that are tested in this session."""
    cases = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = {case.params.get("place") for case in cases if case is not None}
    program = Path(__file__).with_name("kill_training.py")
    places = [place for place in PLACES if place in chosen]
    job = fork_server.start(program, [str(tmp_path_factory.mktemp("killed")), *places])
    assert job.wait(600) == 0, job.stderr
    return {report["name"]: report for report in map(json.loads, job.stdout.splitlines())}


@pytest.mark.fault(
    row=1,
    injected="SIGKILL of `areal train` at 8 places: between and after optimizer steps, after publishing, between log "
    "lines, before, while and after writing a checkpoint",
    seen="continued from the newest checkpoint; parameters, optimizer, random state, data order and metrics equal the "
    "uninterrupted run bit for bit; no reward process outlived the kill",
)
@pytest.mark.parametrize("place", runs.sample_of(PLACES, "after step 4, before its checkpoint"))
def test_a_killed_run_continues_to_the_bits_of_one_that_was_left_alone(reports, place):
    straight, killed = reports["straight"], reports[place]
    assert (straight["exit_code"], straight["step"]) == (0, STEPS)
    assert list(straight["metrics"]) == [str(step) for step in range(1, STEPS + 1)]
    assert killed["killed"] == signal.SIGKILL
    assert killed["exit_code"] == 0, killed["log"]
    for what in ("step", "files", "ledger", "metrics"):
        assert killed[what] == straight[what], what
    assert killed["leftovers"] == []
    assert killed["orphans"] == []
    # Only where the new checkpoint was already in place did the kill cost nothing that had been logged.
    lost = killed["steps_logged"] - killed["checkpoint_left"]
    assert (lost == 0) == (place == "before the older checkpoint is removed")
