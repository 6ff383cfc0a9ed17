"""docs/metrics.md names what real runs log, and nothing else; its rules are rules of the doctor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from areal.infra.diagnosis.rules import RULES
from areal.infra.metrics import names
from areal.infra.metrics.logger import read_metrics
from tests.areal.trainer import pair_runs, runs

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"
ROW = re.compile(r"^\| (`.+?`) \|.*\|([^|]*)\|$", re.MULTILINE)
SECTIONS = ("curriculum/", "distillation/", "source/")
"""Groups of names that need a section of their own in the configuration: mixtures and teachers have their tests."""
ELSEWHERE = {
    "eval/failed", "perf/mfu", "rollout/dropped/<reason>", "rollout/faults/<kind>", "stats/<name>",
    "stats/<name>/count", "stats/<name>/max", "stats/<name>/min", "train/nonfinite_sequences_count",
    "memory/trainer_asleep_mb", "memory/trainer_in_host_mb", "weights/sent_bytes", "weights/skipped_bytes",
}  # fmt: skip
"""Logged on accelerators, with servers, when something fails, or when a reward records it: not by the runs below."""


def on_page():
    """Names in the first column of the tables."""
    return {name for row in ROW.finditer(PAGE.read_text()) for name in re.findall(r"`([^`]+)`", row[1])}


def pattern(name):
    return re.sub(r"<\w+>", "[^/]+", re.sub(r"[.@]", r"\\\g<0>", name))


def logged(folder):
    found = set().union(*read_metrics(folder / "metrics.jsonl").values())
    return found - {"step"}


def unexplained(found):
    known = re.compile("|".join(pattern(name) for name in on_page()))
    return sorted(name for name in found if not known.fullmatch(name))


def evaluated(samples):
    return {"test": {"dataset": {"name": "jsonl", "path": str(runs.ROWS)}, "rows": 2, "samples": samples}}


def grpo(folder):
    changes = {"eval_sets": evaluated(4), "objective__kl": {"coef": 0.01}, "total_train_steps": 1}
    runs.train(runs.tiny(folder, objective__decoupled=True, objective__correction="tis", **changes))


def ppo(folder):
    runs.train(
        runs.tiny(folder, objective__preset="ppo", critic={"lr": 1e-3}, total_train_steps=1, rollout__surplus_prompts=1)
    )


def pairs(kind):
    def run(folder):
        rows = pair_runs.write_pairs(folder / "rows", train=8, test=8)
        pair_runs.train(pair_runs.tiny(kind, folder, rows, total_train_steps=1))

    return run


def sft(folder):
    rows = {"train_dataset__path": str(runs.ROWS), "valid_dataset__path": str(runs.ROWS)}
    pair_runs.train(pair_runs.tiny("sft", folder, folder, total_train_steps=1, valid_dataset__split="train", **rows))


RUNS = {"dpo": pairs("dpo"), "grpo": grpo, "ppo": ppo, "reward_model": pairs("reward_model"), "sft": sft}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", RUNS)
def test_the_page_explains_every_name_that_a_run_logs(kind, tmp_path):
    RUNS[kind](tmp_path)
    found = logged(tmp_path)
    assert names.LOSS in found
    assert unexplained(found) == []


@pytest.mark.exhaustive
def test_every_name_on_the_page_is_logged_by_a_run(tmp_path):
    found = set()
    for kind, run in RUNS.items():
        run(tmp_path / kind)
        found |= logged(tmp_path / kind)
    named = {name for name in on_page() if not name.startswith(SECTIONS)}
    missing = {name for name in named if not any(re.fullmatch(pattern(name), one) for one in found)}
    assert missing == ELSEWHERE


def test_the_page_has_every_name_of_the_module():
    constants = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    for value in constants:
        assert any(name == value or (value.endswith("/") and name.startswith(value)) for name in on_page()), value


def test_rules_on_the_page_are_rules_of_the_doctor():
    named = {rule for row in ROW.finditer(PAGE.read_text()) for rule in re.findall(r"`([^`]+)`", row[2])}
    assert named
    assert named <= set(RULES)


def test_an_unknown_name_is_found():
    assert unexplained({"train/loss", "reward/exact/mean", "train/invented"}) == ["train/invented"]
