"""Rewards that are asked without a process say what they would say in one."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from areal.api import ConfigError, FaultError
from areal.reward.answering import ask
from areal.reward.components import resolve_components
from areal.reward.isolation import AsyncRewardWrapper
from areal.reward.registry import IMMEDIATE, REWARDS
from areal.reward.scoring import RewardSet, recorded_scores, uses_of

ROWS = [
    ("72", {"answer": "72"}),
    ("#### 71", {"answer": "72"}),
    ("", {"answer": "72"}),
    ("72", {}),
    ("7", {"answer": ""}),
]


def outcome_of(reward, completion, columns):
    async def run():
        try:
            return await reward("8*9=", completion, [1], [2], **columns)
        except FaultError as error:
            return error.kind, error.message

    return asyncio.run(run())


@pytest.mark.parametrize("name", sorted(IMMEDIATE))
def test_scores_and_faults_are_those_of_a_process(name):
    (component,) = resolve_components(name)
    whole = RewardSet([component])
    isolated = AsyncRewardWrapper(REWARDS[name], name=component.place, timeout_seconds=60)
    try:
        for completion, columns in ROWS:
            assert outcome_of(whole, completion, columns) == outcome_of(isolated, completion, columns)
    finally:
        isolated.close()


def test_no_process_is_started_and_calls_are_recorded(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    whole = RewardSet(resolve_components({"exact": 0.5}))
    whole.start()
    with recorded_scores() as records:
        assert outcome_of(whole, "72", {"answer": "72"}) == 0.5
        assert isinstance(outcome_of(whole, "72", {}), tuple)
    whole.close()
    use = uses_of(records)["exact"]
    assert (use.calls, use.failures) == (2, 1)
    assert 0 < use.seconds < 1


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_ends_the_process_of_the_caller_is_no_fault_of_a_sample(ending):
    def ends(*_):
        raise ending

    with pytest.raises(ending):
        ask(ends, lambda: ((), {}))


def test_options_are_checked_at_the_start():
    right = RewardSet(resolve_components({"gsm8k": {"options": {"strict": True}}}))
    right.start()
    assert outcome_of(right, "it is 72", {"answer": "72"}) == 0.0
    wrong = RewardSet(resolve_components({"gsm8k": {"options": {"srtict": True}}}))
    with pytest.raises(ConfigError, match=r"reward 'gsm8k \(.*\)' cannot be loaded: TypeError: unknown option srtict"):
        wrong.start()
