"""The example that learns to count from pixels: its rows say what they claim, and its controls do not learn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "vision" / "counting.py"


@pytest.fixture(scope="module")
def counting():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import counting as module
    finally:
        sys.path.pop(0)
    return module


def test_answers_are_equally_frequent_and_pictures_are_new(counting):
    rows = counting.rows_of("one", 400)
    counts = Counter(row["answer"] for row in rows)
    assert sorted(counts) == ["0", "1", "2", "3"]
    assert all(70 < count < 130 for count in counts.values())
    pictures = {row["images"][0] for row in rows}
    assert len(pictures) > 390
    assert not pictures & {row["images"][0] for row in counting.rows_of("other", 400)}


def test_controls_change_answers_or_pictures_only(counting):
    rows, shuffled, swapped = (
        counting.rows_of("one", 400, **options) for options in ({}, {"shuffled": True}, {"swapped": True})
    )
    for name, other, kept in (("answer", shuffled, "images"), ("images", swapped, "answer")):
        assert [row[kept] for row in rows] == [row[kept] for row in other]
        same = sum(one[name] == two[name] for one, two in zip(rows, other, strict=True)) / 400
        assert same < 0.4


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_pixels_are_learnt_and_the_controls_are_not(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), "--seed", "10", "--folder", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["true"]["sampled"] > found["before"]["sampled"] > found["shuffled"]["sampled"]
    assert found["true"]["swapped"] < 0.35
