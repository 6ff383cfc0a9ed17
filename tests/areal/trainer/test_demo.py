"""The demo learns from the reward, and its controls do not: same code, same seed, only the signal differs."""

from __future__ import annotations

import json

import pytest

from areal.infra.diagnosis.record import load_record
from areal.infra.diagnosis.rules import diagnose
from areal.trainer import demo as module
from areal.trainer.demo import DemoConfig, plan_demo, run_demo

STEPS = 60
"""A third of the demo: enough for the difference to be plain."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def demo(directory, **changes):
    result = run_demo(DemoConfig(**{"output_dir": directory, "steps": STEPS} | changes))
    return result, result["after"]["new"] - result["before"]["new"]


@pytest.mark.exhaustive
def test_expressions_that_were_never_shown_are_learnt_from_the_reward(tmp_path):
    result, gain = demo(tmp_path / "demo")
    assert gain > 0.15
    assert result["learnt"]
    assert result["after"]["all"] > result["before"]["all"] + 0.1
    assert diagnose(load_record(tmp_path / "demo" / "grpo")) == []


@pytest.mark.exhaustive
def test_rewards_dealt_out_at_random_teach_nothing(tmp_path):
    result, gain = demo(tmp_path / "demo", control="shuffled-rewards")
    assert gain < 0.08
    assert not result["learnt"]
    signs = {finding.name for finding in diagnose(load_record(tmp_path / "demo" / "grpo"))}
    assert signs & {"flat_unexplained", "groups_all_wrong", "reward_fell"}


@pytest.mark.exhaustive
def test_a_short_demo_writes_its_scores_and_its_report(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SFT_STEPS", 2)
    monkeypatch.setattr(module, "TEST_ROWS", 32)
    result, _ = demo(tmp_path / "demo", steps=1)
    assert result["ok"]
    assert result["steps"] == 1
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["after"] == result["after"]
    assert "<script" in (tmp_path / "demo" / "report.html").read_text()


@pytest.mark.exhaustive
def test_more_imitation_of_the_same_demonstrations_teaches_nothing_new(tmp_path):
    result, _ = demo(tmp_path / "demo", control="sft-only", steps=None)
    assert result["steps"] == 0
    assert result["after"]["new"] < 0.3
    assert not result["learnt"]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    from areal.api import ConfigError

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        demo(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_wrong_option_and_a_dry_run_train_and_remove_nothing(tmp_path):
    from areal.api import ConfigError

    (tmp_path / "demo.json").write_text("{}")
    with pytest.raises(ConfigError, match="total_train_steps is -3"):
        demo(tmp_path, steps=-3)
    plan = plan_demo(DemoConfig(output_dir=tmp_path, steps=7))
    assert plan["steps"] == {"warm_start": 30, "grpo": 7}
    assert plan["replaces"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["demo.json"]


@pytest.mark.parametrize("phase", ["grpo", "sft"])
def test_the_examples_are_the_phases_of_the_demo(tmp_path, phase):
    from areal.trainer.configuration.source import flatten, load_config, to_mapping

    example = flatten(to_mapping(load_config(module_root() / f"examples/math/arithmetic_{phase}.yaml").config))
    mine = (
        module.warm_start_config(tmp_path, seed=0)
        if phase == "sft"
        else module.rl_config(tmp_path, model=tmp_path, seed=0)
    )
    run = flatten(to_mapping(mine))
    # Where a run writes and starts, how rows are named, and that an example is tuned on rows that are not test rows.
    free = (
        "experiment_name",
        "trial_name",
        "output_dir",
        "seed",
        "model.",
        "metrics.",
        "eval_sets.",
        "num_threads",
    )
    names = {key for key in {*example, *run} if not key.startswith(free) and not key.endswith("dataset.name")}
    assert {key: example.get(key) for key in names} == {key: run.get(key) for key in names}
    shape = {key: value for key, value in example.items() if key.startswith("model.init")}
    assert shape == flatten({"model": {"init": module.MODEL}})


def module_root():
    from pathlib import Path

    return Path(__file__).resolve().parents[3]
