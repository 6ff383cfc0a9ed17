"""The smallest program with collectives, which the skill debug-distributed hands out, on two processes with gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal.api import EngineError

SCRIPT = Path(__file__).resolve().parents[4] / "skills/debug-distributed/scripts/collective.py"


def test_every_collective_gives_two_ranks_the_right_numbers(fork_server):
    found = fork_server.run_ranks(SCRIPT, 2, ["--backend=gloo", "--mesh=dp=1,tp=2"], timeout_seconds=60)[0]
    assert (found["size"], found["backend"]) == (2, "gloo")
    assert {"all_reduce", "broadcast", "agreement", "all_reduce along tp", "full_tensor"} <= found["problems"].keys()
    assert set(found["problems"].values()) == {""}


def test_a_rank_that_stays_away_makes_the_others_fail(fork_server):
    with pytest.raises(EngineError, match="failed"):
        fork_server.run_ranks(SCRIPT, 2, ["--backend=gloo", "--leave-out=1", "--seconds=3"], timeout_seconds=60)


def test_a_start_without_ranks_says_how_to_start_it(fork_server):
    alone = fork_server.start(SCRIPT)
    assert alone.wait(60) == 2
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set" in alone.stderr
    assert f"areal launch --ranks 2 -- python {SCRIPT}" in alone.stderr
    assert "Traceback" not in alone.stderr
