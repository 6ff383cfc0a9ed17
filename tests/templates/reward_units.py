"""Helpers for the tests of the reward generator: a copy of this repository, and units planned and written in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tooling.kit.change.transaction import apply_plan, transaction
from tooling.new.change import Change, UnitRequest, open_project
from tooling.new.commands.generate import plan_unit

ROOT = Path(__file__).resolve().parents[2]
TOTAL = r"(?i)total\s{0,5}=\s{0,5}(?P<answer>[\d,.]+)"
UNITS: dict[str, dict[str, Any]] = {
    "ours_exact": {"style": "exact"},
    "ours_boxed": {"style": "boxed", "answer_column": "solution"},
    "ours_math": {"style": "math_verify", "answer_column": "final"},
    "ours_regex": {"style": "regex"},
    "ours_total": {"style": "regex", "pattern": TOTAL, "example": "the total = 1,080", "comparison": "number"},
    "ours_choice": {"style": "choice", "letters": "B-J"},
    "ours_code": {"style": "code", "tests_column": "checks", "time_limit_seconds": 5.0},
    "ours_judge": {
        "style": "llm_judge",
        "model": "judge-7b",
        "rubric": 'Is it "kind"?\nBe \\ strict. ' * 9,
        "scale": 5,
    },
    "ours_open_judge": {"style": "llm_judge", "model": "org/judge", "answer_column": ""},
    "ours_sum": {"style": "composite", "parts": "gsm8k=1.0,exact=0.2"},
    "ours_mean": {
        "style": "composite",
        "parts": '{"gsm8k": 1, "areal.reward.exact:exact_reward": -0.25}',
        "normalised": True,
    },
}


def copied_repository(target: Path) -> Path:
    """The files of this repository, as they are now, in a git repository of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    return target


def planned(root: Path, name: str, answers: dict[str, Any], **options: str) -> Change:
    """The plan of one reward. Options are written with underscores."""
    request = UnitRequest(
        kind="reward",
        name=name,
        answers=answers,
        options={option.replace("_", "-"): str(value) for option, value in options.items()},
    )
    return plan_unit(open_project(root), request)


def written(root: Path, unit: Change) -> Change:
    """Apply a plan."""
    project = open_project(root)
    with transaction(project.repository, wait_seconds=10.0, note=lambda _: None):
        apply_plan(project.repository, unit.plan)
    return unit


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """`python -m COMMAND` in a repository, which is the first place imports are looked for."""
    environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
