"""What real runs leave for `areal report` and `areal doctor`: the log of every start, and metrics that rules read."""

from __future__ import annotations

import json
import re

import pytest
import runs

from areal.api import NumericsError, RolloutError
from areal.infra.diagnosis.record import load_record
from areal.infra.diagnosis.rules import diagnose
from areal.infra.diagnosis.summary import summarise
from areal.trainer.session import open_session

REWARDS = """
def constant(prompt, completions, prompt_ids, completion_ids, **data):
    return 0.0

def raises(prompt, completions, prompt_ids, completion_ids, **data):
    raise RuntimeError("judge is down")

def short(prompt, completions, prompt_ids, completion_ids, **data):
    return -float(len(completion_ids))
"""


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """Name of an importable module with the rewards above."""
    (tmp_path / "rewards_of_scenes.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "rewards_of_scenes"


def findings(directory):
    return {finding.name: finding for finding in diagnose(load_record(directory))}


@pytest.mark.exhaustive
def test_a_constant_reward_is_named_as_no_signal(tmp_path, rewards):
    config = runs.tiny(tmp_path / "run", reward=f"{rewards}:constant", total_train_steps=3)
    runs.train(config)
    seen = findings(config.directory)
    assert set(seen) == {"groups_all_wrong"}
    assert seen["groups_all_wrong"].grounds.numbers["equal_share"] == 1.0
    record = load_record(config.directory)
    assert (record.state, record.total_steps, len(record.starts)) == ("finished", 3, 1)


def test_a_run_that_learns_has_no_finding_and_its_starts_are_counted(tmp_path, rewards):
    config = runs.tiny(tmp_path / "run", reward=f"{rewards}:short", total_train_steps=2)
    runs.train(config)
    runs.train(runs.tiny(tmp_path / "run", reward=f"{rewards}:short", total_train_steps=4))
    record = load_record(config.directory)
    assert findings(config.directory) == {}
    assert (record.state, record.last_step, len(record.starts), record.unended) == ("finished", 4, 2, 0)
    assert all(0 <= value < 1 for _, value in record.values("reward/zero_variance_share"))
    assert summarise(record, [])["metrics"]["reward/mean"]["count"] == 4


def test_a_reward_that_always_raises_is_named_with_its_prompts_and_message(tmp_path, rewards):
    config = runs.tiny(
        tmp_path / "run", reward=f"{rewards}:raises", rollout__max_consecutive_failures=2, rollout__max_retries=0
    )
    with pytest.raises(RolloutError):
        runs.train(config)
    seen = findings(config.directory)
    assert set(seen) == {"no_rollouts", "reward_error"}
    assert re.search(r"prompt \d, row \d", seen["reward_error"].grounds.text)
    assert "judge is down" in seen["reward_error"].grounds.text
    assert load_record(config.directory).state == "failed"


def test_an_error_is_the_last_line_of_the_log_with_its_traceback(tmp_path):
    config = runs.tiny(tmp_path / "run")

    def train():
        with open_session(config) as session:
            session.finished_steps = 2
            raise NumericsError("11 steps in a row")

    with pytest.raises(NumericsError):
        train()
    *_, last = (json.loads(line) for line in (config.directory / "log.jsonl").read_text().splitlines())
    assert (last["kind"], last["exit_code"], last["steps"]) == ("end", 23, 2)
    assert last["problem"] == "NumericsError: 11 steps in a row"
    assert "Traceback" in last["exception"]
    assert set(findings(config.directory)) == {"steps_skipped"}
