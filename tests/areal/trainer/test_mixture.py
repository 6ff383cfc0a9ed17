"""Several sources in one run: exact shares, rewards and sampling of their own, metrics, the dry run, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs

from areal.api import ConfigError, RolloutError
from areal.cli.main import main
from areal.infra.metrics.jsonl import read_rollouts
from areal.infra.metrics.logger import read_metrics
from areal.trainer.code_fingerprint import fingerprint_code
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import find_problems, validate_run

REWARD = """
def brief(prompt, completions, prompt_ids, completion_ids, **data):
    return 1.0 / (1 + len(completion_ids))

def digits(prompt, completions, prompt_ids, completion_ids, **data):
    return float(sum(character.isdigit() for character in completions))
"""
DATASET = {"name": "jsonl", "path": str(runs.ROWS)}


def mixed(folder, **changes):
    settings = {
        "train_dataset__name": "",
        "train_dataset__path": "",
        "sources": {"long": {"dataset": DATASET, "weight": 3}, "short": {"dataset": DATASET, "max_rows": 3}},
        "metrics__rollouts_per_step": 99,
    }
    return runs.tiny(folder, **(settings | changes))


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Name of an importable module with rewards."""
    (tmp_path / "mixture_scores.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "mixture_scores"


def order_of(folder):
    """(ordinal, source, prompt) of everything that was trained; of steps logged twice, the last."""
    groups = {group.ordinal: group for group in read_rollouts(folder / "rollouts.jsonl")}
    return [(n, group.source, group.samples[0].text["prompt"]) for n, group in sorted(groups.items())]


def test_every_source_has_its_share_its_reward_its_sampling_and_its_metrics(tmp_path, code):
    config = mixed(
        tmp_path / "run",
        reward=f"{code}:digits",
        total_train_steps=3,
        sources={
            "long": {"dataset": DATASET, "weight": 3},
            "short": {
                "dataset": DATASET,
                "max_rows": 3,
                "reward": {"brief": {"path": f"{code}:brief", "normalize": "group"}},
                "gconfig": {"max_new_tokens": 2},
                "pass_reward": 0.4,
            },
        },
    )
    runs.train(config)
    groups = list(read_rollouts(tmp_path / "run" / "rollouts.jsonl"))
    assert len(groups) == 12
    for group in groups:
        for sample in group.samples:
            assert set(sample.components) == ({"digits"} if group.source == "long" else {"brief"})
            assert len(sample.tokens) <= (4 if group.source == "long" else 2)
    steps = [values for step, values in read_metrics(tmp_path / "run" / "metrics.jsonl").items() if step]
    assert [(values["source/long/share"], values["source/short/share"]) for values in steps] == [(0.75, 0.25)] * 3
    rewards = [sample.reward for group in groups[-4:] if group.source == "short" for sample in group.samples]
    assert steps[-1]["source/short/reward_mean"] == pytest.approx(sum(rewards) / 4)
    assert steps[-1]["source/short/pass_rate"] == sum(reward >= 0.4 for reward in rewards) / 4
    assert (steps[-1]["source/short/rows"], steps[-1]["source/short/epochs"]) == (3, 1)
    assert steps[-1]["source/long/epochs"] == pytest.approx(9 / 64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("surplus", runs.sample_of([0, 3], 3))
def test_a_run_that_crashes_again_and_again_trains_the_rows_of_one_that_does_not(tmp_path, code, surplus):
    changes = {
        "rollout__surplus_prompts": surplus,
        "reward": f"{code}:digits",
        "total_train_steps": 5,
        "checkpoint__every_steps": 1,
        "rollout__filter_zero_variance": True,
        "curriculum": {"pools": {"hard": {"up_to": 0.5}, "easy": {"weight": 0.5}}, "replay": 0.25, "memory": 0.8},
    }
    runs.train(mixed(tmp_path / "straight", **changes))

    def crash(at):
        def transform(step, trajectories):
            if step == at:
                raise KeyboardInterrupt
            return trajectories

        return transform

    for at in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            runs.train(mixed(tmp_path / "crashed", **changes), transform_rewards=crash(at))
    runs.train(mixed(tmp_path / "crashed", **changes))
    straight = order_of(tmp_path / "straight")
    assert len(straight) >= 20
    assert order_of(tmp_path / "crashed") == straight
    steps = [values for step, values in read_metrics(tmp_path / "crashed" / "metrics.jsonl").items() if step]
    assert [values.get("rollout/cancelled") for values in steps] == [3.0 if surplus else None] * 5


@pytest.mark.exhaustive
def test_a_source_that_is_used_up_ends_the_run_and_keeps_what_was_trained(tmp_path, code):
    config = mixed(tmp_path / "run", reward=f"{code}:digits", curriculum={"max_reuse": 1}, total_train_steps=9)
    with pytest.raises(RolloutError, match="source 'short' is used up: 3 prompts"):
        runs.train(config)
    assert max(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 3
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_the_dry_run_shows_rows_shares_and_what_will_be_used_up(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("kind: rl\n")
    settings = runs.BASE | {
        "output_dir": str(tmp_path / "out"),
        "train_dataset.name": "",
        "train_dataset.path": "",
        "sources": {"long": {"dataset": DATASET, "weight": 3}, "short": {"dataset": DATASET, "max_rows": 3}},
        "curriculum": {"max_reuse": 2},
        "total_train_steps": 8,
    }
    arguments = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    assert main(["train", str(tmp_path / "run.yaml"), *arguments, "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sources"]["long"] == {"rows": 64, "share": 0.75, "prompts": 24.0, "epochs": 0.375}
    assert report["sources"]["short"]["rows"] == 3
    assert report["derived"]["train_rows"] == 67
    assert set(report["tried"]["rewards"]) == {"long", "short"}
    assert any("source short is used up before the end" in note for note in report["notes"])
    assert main(["train", str(tmp_path / "run.yaml"), *arguments, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "  short          3   25.0%          8     2.67" in text
    assert "what is set in train_dataset has no effect: sources are set" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": {"a": {"dataset": DATASET, "weight": 0}}}, "weight"),
        ({"sources": {"a": {"dataset": DATASET, "weigth": 1}}}, "weight"),
        ({"sources": {"a/b": {"dataset": DATASET}}}, "rename the source|names are part of metrics"),
        ({"train_dataset__name": "jsonl"}, "there are sources, too"),
        ({"sources": {"a": {"dataset": DATASET, "workflow_options": {"x": 1}}}}, "without workflow"),
        ({"sources": {"a": {"dataset": DATASET, "gconfig": {"temperature": 0.5}}}}, "one loss needs one temperature"),
        (
            {"sources": {"a": {"dataset": DATASET, "gconfig": {"max_new_tokens": 2}}}, "objective__overlong_buffer": 1},
            "counts back from",
        ),
        ({"curriculum": {"pools": {"hard": {"up_to": 0.5}}}}, "rows above have no pool"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        mixed(tmp_path, **changes)


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"dataset": {}}, "sources.a.dataset.name"),
        ({"dataset": DATASET, "reward": "exactt"}, "sources.a.reward"),
        ({"dataset": DATASET, "workflow": "rlvrr"}, "sources.a.workflow"),
        ({"dataset": DATASET, "gconfig": {"max_new_tokens": 64}}, "sources.a.gconfig.max_new_tokens"),
    ],
)
def test_names_that_nobody_knows_are_found_before_anything_is_loaded(tmp_path, source, key):
    with pytest.raises(ConfigError) as caught:
        validate_run(mixed(tmp_path, sources={"a": source}))
    assert [problem["key"] for problem in caught.value.problems] == [key]


def test_a_run_needs_a_reward_only_where_a_source_has_none(tmp_path):
    own = {"dataset": DATASET, "reward": "exact"}
    validate_run(mixed(tmp_path, reward="", sources={"a": own, "b": own}))
    with pytest.raises(ConfigError, match="reward"):
        validate_run(mixed(tmp_path, reward="", sources={"a": own, "b": {"dataset": DATASET}}))


def test_code_of_a_source_is_fingerprinted(tmp_path, code):
    config = mixed(tmp_path, sources={"a": {"dataset": DATASET, "reward": f"{code}:brief"}})
    assert "mixture_scores" in fingerprint_code(config)[f"sources.a.reward {code}:brief"]


def test_the_example_is_valid():
    assert find_problems(load_config(Path("examples/math/mixture.yaml"), []).config) == []
