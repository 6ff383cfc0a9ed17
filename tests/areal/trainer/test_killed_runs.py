"""`areal train` killed by SIGKILL anywhere continues to the same bits as a run that was left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
def reports(tmp_path_factory):
    """What became of each run, by the place where it was killed."""
    program = Path(__file__).with_name("kill_training.py")
    command = [sys.executable, str(program), str(tmp_path_factory.mktemp("killed"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}


def test_every_place_was_tried(reports):
    assert tuple(reports) == ("straight", *PLACES)
    assert [reports["straight"][name] for name in ("exit_code", "step")] == [0, STEPS]
    assert list(reports["straight"]["metrics"]) == [str(step) for step in range(1, STEPS + 1)]


@pytest.mark.fault(
    row=1,
    injected="SIGKILL of `areal train` at 8 places: between and after optimizer steps, after publishing, between log "
    "lines, before, while and after writing a checkpoint",
    seen="continued from the newest checkpoint; parameters, optimizer, random state, data order and metrics equal the "
    "uninterrupted run bit for bit; no reward process outlived the kill",
)
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_continues_to_the_bits_of_one_that_was_left_alone(reports, place):
    straight, killed = reports["straight"], reports[place]
    assert killed["killed"] == signal.SIGKILL
    assert killed["exit_code"] == 0, killed["log"]
    for what in ("step", "files", "ledger", "metrics"):
        assert killed[what] == straight[what], what
    assert killed["leftovers"] == []
    assert killed["orphans"] == []


def test_the_kills_came_where_work_was_lost(reports):
    lost = {place: reports[place]["steps_logged"] - reports[place]["checkpoint_left"] for place in PLACES}
    # Only where the new checkpoint was already in place did the kill cost nothing that had been logged.
    assert {place for place, steps in lost.items() if steps == 0} == {"before the older checkpoint is removed"}
