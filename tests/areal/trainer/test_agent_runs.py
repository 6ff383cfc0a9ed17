"""Whole runs of an agent: a trainer that is killed while agents work."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=47,
    injected="SIGKILL of `areal train` with `workflow: agent` in step 4, while agents are at work; the last checkpoint "
    "is that after step 2",
    seen="continued by the same command: the prompts of steps 3 and 4 are given to agents again, each once per sample; "
    "ledger, rewards and losses equal those of the uninterrupted run",
)
def test_a_run_of_agents_that_is_killed_repeats_its_prompts_and_loses_nothing(tmp_path, fork_server):
    job = fork_server.start(Path(__file__).with_name("kill_agent_training.py"), [str(tmp_path)])
    assert job.wait(600) == 0, job.stderr
    straight, killed = map(json.loads, job.stdout.splitlines())
    assert (straight["exit_code"], straight["step"]) == (0, 5)
    assert (killed["killed"], killed["checkpoint_left"]) == (signal.SIGKILL, 2)
    assert killed["exit_code"] == 0, killed["log"]
    for what in ("step", "ledger", "leftovers"):
        assert killed[what] == straight[what], what
    for step, expected in straight["metrics"].items():
        # Which requests are in one batch is a matter of time, and rounds the log-probabilities that are recorded.
        assert killed["metrics"][step] == pytest.approx(expected, abs=1e-5, nan_ok=True), step
    (whole,), (before, after) = straight["prompts"], killed["prompts"]
    # Two samples of two prompts a step; admission may be a step ahead of what the run used in the end.
    assert Counter(before[8:16]) == Counter(after[:8])
    assert Counter(before[:8]) + Counter(after[:12]) == Counter(whole[:20])
