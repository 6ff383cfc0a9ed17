"""Runs with several rewards, numbers of their own, and rewards that hang or crash: the scenes a researcher meets."""

from __future__ import annotations

import itertools
import json
import logging
from functools import partial

import pytest
import runs

from areal.api import Fault, FaultKind, RolloutError, UsageError
from areal.infra.metrics.logger import read_metrics
from areal.infra.metrics.report import write_report
from areal.infra.rollout.config import RolloutConfig
from areal.infra.rollout.episode import EpisodeJob
from areal.infra.rollout.groups import LostRewards, place_of

CODE = """
import os
from areal.utils import stats

def digits(prompt, completions, prompt_ids, completion_ids, *, worth=1.0, **data):
    found = sum(character.isdigit() for character in completions)
    stats.record("digits", found)
    return worth * found

def brief(prompt, completions, prompt_ids, completion_ids, **data):
    return 1.0 / (1 + len(completion_ids))

def constant(prompt, completions, prompt_ids, completion_ids, **data):
    return 0.25

def hangs(prompt, completions, prompt_ids, completion_ids, **data):
    while True:
        pass

def exits(prompt, completions, prompt_ids, completion_ids, **data):
    os._exit(3)
"""

WORKFLOW = """
from areal.utils import stats
from areal.workflow.rlvr import RLVRWorkflow

class Counted(RLVRWorkflow):
    async def arun_episode(self, engine, data):
        trajectory = await super().arun_episode(engine, data)
        stats.record("tokens/sampled", trajectory.num_sampled)
        return trajectory
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Name of an importable module with the rewards above; `<name>_flow` has the workflow."""
    (tmp_path / "own_scores.py").write_text(CODE)
    (tmp_path / "own_scores_flow.py").write_text(WORKFLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_scores"


def rollouts(folder):
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_every_component_and_recorded_number_is_in_metrics_rollouts_evaluation_and_report(tmp_path, code):
    config = runs.tiny(
        tmp_path / "run",
        reward={
            "exact": 1.0,
            "digits": {"path": f"{code}:digits", "weight": 0.5, "options": {"worth": 2.0}},
            "brief": {"path": f"{code}:brief", "weight": 0},
        },
        workflow=f"{code}_flow:Counted",
        total_train_steps=2,
        metrics__rollouts_per_step=4,
        eval_sets={"held_out": {"dataset": {"name": "jsonl", "path": str(runs.ROWS)}, "rows": 4}},
    )
    summary, _ = runs.train(config)
    assert summary["finished"]
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for step in (1, 2):
        row = steps[step]
        lines = [line for line in rollouts(tmp_path / "run") if line.get("step") == step]
        samples = [sample for line in lines for sample in line["samples"]]
        assert len(samples) == 16  # 4 prompts, 4 samples each: all are kept here, so that means can be checked
        for name in ("exact", "digits", "brief"):
            values = [sample["components"][name] for sample in samples]
            assert row[f"reward/{name}/mean"] == pytest.approx(sum(values) / 16)
            assert row[f"reward/{name}/failures"] == 0.0
            assert 0 < row[f"reward/{name}/seconds"] < 60
        assert row["reward/mean"] == pytest.approx(row["reward/exact/mean"] + 0.5 * row["reward/digits/mean"])
        digits = [sample["stats"]["digits"] for sample in samples]
        assert digits == [sample["components"]["digits"] / 2 for sample in samples]
        assert row["stats/digits"] == pytest.approx(sum(digits) / 16)
        assert (row["stats/digits/count"], row["stats/digits/max"]) == (16.0, max(digits))
        sampled = [len([v for v, n in sample["versions"] for _ in range(n) if v >= 0]) for sample in samples]
        assert row["stats/tokens/sampled"] == pytest.approx(sum(sampled) / 16)
    evaluated = summary["eval_after"]
    assert evaluated["eval/held_out/stats/digits/count"] == 4.0
    assert evaluated["eval/held_out/reward/brief/failures"] == 0.0
    assert evaluated["eval/held_out/reward/brief/seconds"] > 0.0
    assert evaluated["eval/held_out/avg@1"] == pytest.approx(
        evaluated["eval/held_out/reward/exact/mean"] + 0.5 * evaluated["eval/held_out/reward/digits/mean"]
    )
    page = write_report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert "Reward components" in page
    assert "stats/tokens/sampled" in page


@pytest.mark.exhaustive
def test_a_normalised_run_trains_on_other_scores_than_it_reports(tmp_path, code):
    parts = {"digits": {"path": f"{code}:digits", "options": {"worth": 100.0}}, "brief": {"path": f"{code}:brief"}}
    outcomes = {}
    for how in ("none", "group"):
        reward = {name: {**part, "normalize": how} for name, part in parts.items()}
        config = runs.tiny(tmp_path / how, reward=reward, total_train_steps=1, objective__preset="drgrpo")
        _, outcomes[how] = runs.train(config)
    first, second = (read_metrics(tmp_path / how / "metrics.jsonl")[1] for how in ("none", "group"))
    same = ("reward/mean", "reward/std", "reward/max", "reward/digits/mean", "reward/brief/std")
    assert [first[name] for name in same] == pytest.approx([second[name] for name in same], rel=1e-5)
    assert first["reward/mean"] > 1
    # The gradient of the raw sum is that of the component with the large scale.
    assert second["train/grad_norm"] < first["train/grad_norm"] / 10
    assert any(not (outcomes["none"][name] == outcomes["group"][name]).all() for name in outcomes["none"])


def test_a_workflow_that_discounts_the_score_cannot_be_normalised(tmp_path, code):
    config = runs.tiny(
        tmp_path / "run",
        reward={"digits": {"path": f"{code}:digits", "normalize": "group"}},
        workflow="multi_turn",
        workflow_options={"max_turns": 2, "turn_discount": 0.5, "success_reward": 99.0, "feedback": "="},
        total_train_steps=1,
    )
    with pytest.raises(UsageError, match="multi_turn changes the score"):
        runs.train(config)


@pytest.mark.exhaustive
def test_constant_rewards_are_reported_after_the_first_step(tmp_path, code, caplog):
    caplog.set_level(logging.WARNING, logger="areal.infra.metrics.samples")
    runs.train(runs.tiny(tmp_path / "run", reward=f"{code}:constant", total_train_steps=3))
    warned = [record.getMessage() for record in caplog.records if record.name == "areal.infra.metrics.samples"]
    assert len(warned) == 1
    assert warned[0].startswith("step 1: ")
    assert "the reward is the constant 0.25" in warned[0]
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [steps[step]["reward/zero_variance_share"] for step in (1, 2, 3)] == [1.0] * 3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("function", "facts", "timeout", "group_size"),
    [
        # The queue holds the samples of one prompt first.
        ("exits", ["lost the process", "its process died after", "exit status 3"], 30.0, 64),
        pytest.param("hangs", ["4 timed out", "did not finish within 1 s"], 1.0, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_a_reward_that_hangs_or_exits_ends_a_run_of_256_samples_at_once(
    tmp_path, code, caplog, function, facts, timeout, group_size
):
    caplog.set_level(logging.WARNING)
    config = runs.tiny(
        tmp_path / "run",
        reward=f"{code}:{function}",
        rollout__batch_size=256 // group_size,
        rollout__group_size=group_size,
        rollout__reward_workers=1,
        rollout__reward_timeout_seconds=timeout,
    )
    with pytest.raises(RolloutError) as caught:
        runs.train(config)
    text = str(caught.value)
    assert "the reward of 4 samples in a row was lost" in text  # and not of 256, three times each
    for fact in (
        *facts,
        f"reward '{function} ({code}:{function})'",
        "dataset jsonl, row ",
        "was scored since the start",
    ):
        assert fact in text
    assert "rollout.reward_timeout_seconds" in caught.value.fix
    # The first one was named when it was lost, not when its prompt was given up.
    first = next(record.getMessage() for record in caplog.records if "first fault" in record.getMessage())
    assert "row " in first
    assert f"{code}:{function}" in first


class Counted:
    """A sequence of attempts, and after how many the run ends."""

    def __init__(self, **settings):
        self.lost = LostRewards(RolloutConfig(**settings), place=partial(place_of, dataset="sums"))

    def feed(self, attempts):
        """Return after how many attempts it raised, and the error; None when it did not."""
        for number, (prompt, sample, kind) in enumerate(attempts, start=1):
            job = EpisodeJob(
                stream="train", ordinal=prompt, sample_index=sample, data={}, admitted_version=0, row_index=prompt + 10
            )
            try:
                self.lost.note(job, kind and Fault(kind=kind, message=f"{kind.value} of {prompt}.{sample}"))
            except RolloutError as error:
                return number, error
        return None


SLOW, DEAD, RAISED = FaultKind.REWARD_TIMEOUT, FaultKind.REWARD_DIED, FaultKind.REWARD_RAISED


def test_before_anything_was_scored_four_samples_of_two_prompts_are_enough():
    number, error = Counted().feed((p, 0, SLOW if p % 2 else DEAD) for p in range(9))
    assert number == 4
    assert "4 samples in a row was lost (2 timed out and 2 lost the process)" in str(error)
    assert "prompt 0, row 10 of dataset sums, sample 0: reward_died of 0.0" in str(error)
    assert "prompt 3, row 13 of dataset sums, sample 0: reward_timeout of 3.0" in str(error)


def test_four_samples_of_one_prompt_are_enough_when_the_reward_answered_for_no_other():
    assert Counted().feed((0, sample, SLOW) for sample in range(16))[0] == 4
    own_faults = [(0, 0, RAISED), (9, 0, FaultKind.GENERATION_FAILED)]
    assert Counted().feed([*own_faults, *((0, sample, SLOW) for sample in range(16))])[0] == 6


@pytest.mark.parametrize("answer", [None, RAISED, FaultKind.REWARD_INVALID])
def test_one_odd_row_does_not_end_the_run_before_the_limit_when_another_was_answered(answer):
    attempts = [(1, 0, answer), *((0, sample, SLOW) for sample in range(16))]
    assert Counted(max_lost_rewards=16).feed(attempts[:16]) is None
    assert Counted(max_lost_rewards=16).feed(attempts)[0] == 17


def test_attempts_at_one_sample_count_once_and_a_score_starts_anew():
    repeated = [(p, 0, SLOW) for p in range(3)] * 5
    assert Counted().feed(repeated) is None
    counted = Counted(max_lost_rewards=6)
    assert counted.feed([*repeated, (9, 9, None), *((p, 0, SLOW) for p in range(5))]) is None
    assert counted.feed([(77, 0, None), *((p, 0, DEAD) for p in range(5))]) is None
    _, error = counted.feed([(5, 0, SLOW)])
    assert "no sample was scored in between" in str(error)


def test_a_reward_that_raises_is_the_business_of_the_other_limits():
    assert Counted(max_lost_rewards=2).feed(zip(range(40), itertools.repeat(0), itertools.repeat(RAISED))) is None
