"""Several rewards in real processes: one score, and what each component said, took and failed."""

from __future__ import annotations

import asyncio
import sys

import pytest

from areal.api import ConfigError, FaultError, FaultKind, RewardUse
from areal.reward.components import resolve_components
from areal.reward.scoring import RewardSet, ScoreRecord, components_of, recorded_scores, uses_of
from areal.utils import stats

SOURCE = """
import os, time
from areal.utils import stats

def right(prompt, completions, prompt_ids, completion_ids, *, answer, **data):
    stats.record("answers", 1)
    return completions == answer

def words(prompt, completions, prompt_ids, completion_ids, *, scale=1.0, **data):
    stats.record("words", len(completions.split()))
    stats.record("words", 0)
    return scale * len(completions.split())

def raises(prompt, completions, prompt_ids, completion_ids, **data):
    stats.record("lost", 1)
    raise RuntimeError("judge is down")

def no_number(prompt, completions, prompt_ids, completion_ids, **data):
    return None

def dies(prompt, completions, prompt_ids, completion_ids, **data):
    os._exit(3)

def records_nonsense(prompt, completions, prompt_ids, completion_ids, **data):
    stats.record("ratio", float("nan"))
    return 1.0
"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_several_rewards.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield "own_several_rewards"
    sys.path.remove(str(folder))


def score(reward, *, calls=1, **settings):
    """Outcomes, records and recorded numbers of some calls of one reward."""

    async def run():
        whole = RewardSet(resolve_components(reward), **settings)
        try:
            with recorded_scores() as records, stats.scope() as values:
                tasks = (whole("q", "two words", [1], [2], answer="two words") for _ in range(calls))
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            return outcomes, records, values
        finally:
            whole.close()

    return asyncio.run(run())


def test_components_add_up_and_leave_their_values_behind(rewards):
    config = {
        "right": {"path": f"{rewards}:right"},
        "words": {"path": f"{rewards}:words", "weight": -0.5, "options": {"scale": 3.0}},
    }
    outcomes, records, values = score(config, calls=2)
    assert outcomes == [1.0 - 0.5 * 6.0] * 2
    assert [(record.score, record.values, record.failed) for record in records] == [
        (-2.0, {"right": 1.0, "words": 6.0}, ())
    ] * 2
    assert all(0 <= seconds < 5 for record in records for seconds in record.seconds.values())
    # Recorded in the reward's process, there in this one; a reward that recorded twice has both.
    assert values == {"answers": [1.0, 1.0], "words": [2.0, 0.0, 2.0, 0.0]}


def test_a_component_that_fails_makes_the_whole_a_fault_that_names_it(rewards):
    (fault,), (record,), values = score([f"{rewards}:right", f"{rewards}:raises"], timeout_seconds=60)
    assert isinstance(fault, FaultError)
    assert fault.kind is FaultKind.REWARD_RAISED
    assert f"reward 'raises ({rewards}:raises)' raised RuntimeError: judge is down" in fault.message
    assert (record.score, record.values, record.failed) == (None, {"right": 1.0}, ("raises",))
    assert values == {}


def test_of_several_failures_that_which_no_retry_can_mend_decides(rewards):
    (fault,), (record,), _ = score([f"{rewards}:dies", f"{rewards}:no_number"])
    assert fault.kind is FaultKind.REWARD_INVALID
    assert "its process died" in fault.message
    assert "exit status 3" in fault.message
    assert "returned None" in fault.message
    assert record.failed == ("dies", "no_number")


def test_a_recorded_value_that_is_no_number_is_a_fault_with_its_line(rewards):
    (fault,), _, _ = score(f"{rewards}:records_nonsense")
    assert fault.kind is FaultKind.REWARD_RAISED
    assert "stats.record('ratio', nan) at" in fault.message
    assert "own_several_rewards.py:" in fault.message
    assert "in records_nonsense" in fault.message


def test_an_option_that_the_function_does_not_have_is_refused_before_anything_is_scored(rewards):
    whole = RewardSet(resolve_components({"words": {"path": f"{rewards}:words", "options": {"scael": 2}}}))
    try:
        with pytest.raises(ConfigError, match="unknown option scael; it takes scale"):
            whole.start()
    finally:
        whole.close()


def test_a_trajectory_gets_the_values_behind_its_own_score():
    calls = [
        ScoreRecord(score=0.0, values={"a": 0.0}, seconds={"a": 1.0}),
        ScoreRecord(score=1.0, values={"a": 1.0}, seconds={"a": 1.0}),
        ScoreRecord(score=None, values={}, seconds={"a": 15.0}),
        ScoreRecord(score=0.5, values={"a": 0.5}, seconds={"a": 2.0}),
    ]
    assert [components_of(calls, reward) for reward in (0.0, 1.0, 0.5)] == [{"a": 0.0}, {"a": 1.0}, {"a": 0.5}]
    assert components_of(calls, 0.45) == {"a": 0.5}  # a discount of the last one
    assert components_of(calls[2:3], 0.0) == {}
    assert uses_of(calls) == {"a": RewardUse(calls=4, failures=1, seconds=19.0)}
