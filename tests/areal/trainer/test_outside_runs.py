"""A whole run that trains on sessions which a program of somebody else opens, holds and scores."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-agents/bin/python"
TOKENIZER = ROOT / "examples/agents/tokenizer"
ADMIN = "admin-key-of-the-tests-" + "a" * 20

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the SDKs: bash scripts/setup_agent_clients.sh"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_ADMIN_KEY", ADMIN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "visit.jsonl").write_text(json.dumps({"prompt": "1", "answer": ""}) + "\n")
    return tmp_path


def settings(place):
    return {
        "total_train_steps": 4,
        "checkpoint__every_steps": 1,
        "model__init": runs.BASE["model.init"] | {"vocab_size": 22, "eos_token_id": 1, "pad_token_id": 0},
        "model__tokenizer_path": str(TOKENIZER),
        "train_dataset__path": str(place / "visit.jsonl"),
        "workflow": "outside_sessions",
        "workflow_options": {
            "key_variable": "AREAL_ADMIN_KEY",
            "ready_file": str(place / "ready.json"),
            "gateway": {"reward_deadline": 2.0, "drain_seconds": 0.5},
        },
        "reward": "unscored",
        "gconfig__max_new_tokens": 6,
        "rollout__batch_size": 3,
        "rollout__group_size": 1,
        "rollout__max_head_offpolicyness": 1,
        "rollout__consume": "drop",
        "objective__advantage": "reinforce_pp",
    }


@contextlib.contextmanager
def user(place, first=0):
    """The program, while the run is there; returns a function that waits for its end and gives its scores."""
    report = place / f"report{first}.json"
    program = Path(__file__).with_name("user_of_sessions.py")
    command = [str(PYTHON), str(program), str(place / "ready.json"), str(report), str(first)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)

    def scores():
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()[-2000:]
        return {one["score"] for one in json.loads(report.read_text()) if one.get("score") is not None}

    try:
        yield scores
    finally:
        process.kill()


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def steps_of(folder):
    return [one for one in lines(folder, "metrics.jsonl") if "reward/mean" in one]


def assert_trained_once(folder, scores):
    """Twelve sessions, each once, none without its reward, and of each every token."""
    samples = {}
    for one in lines(folder, "rollouts.jsonl"):
        if "first_step" in one:  # a start, which does this step and later ones anew
            samples = {key: group for key, group in samples.items() if key[0] < one["first_step"]}
        else:
            samples[one["step"], one["group"]] = one["samples"]
    trained = [sample["reward"] for group in samples.values() for sample in group]
    assert len(trained) == len(set(trained)) == 4 * 3
    assert set(trained) <= scores, "what nobody scored is not trained"
    assert max(one["rollout/staleness_max"] for one in steps_of(folder)) <= 1
    for group in samples.values():
        assert all(sample["stats"]["agent/exact_continuation"] == 1.0 for sample in group)
        assert all(sample["stats"]["agent/tokens_wasted"] == 0 for sample in group)


def test_a_run_learns_from_sessions_of_an_openai_client_that_it_did_not_start(place):
    with user(place) as scores:
        summary, _ = runs.train(runs.tiny(place / "run", **settings(place)))
        assert summary["steps"] == 4
        assert_trained_once(place / "run", scores())
    assert sum(one.get("rollout/faults/reward_missing", 0) for one in steps_of(place / "run")) >= 1


@pytest.mark.fault(
    row=47,
    injected="SIGKILL of `areal train` with `workflow: outside_sessions` after step 2, while others hold sessions",
    seen="continued by the same command: new places are opened, and over both starts each trained session is trained "
    "once, with its own reward",
)
def test_a_run_that_is_killed_opens_new_places_and_trains_nothing_twice(place):
    changes = runs.BASE | {key.replace("__", "."): value for key, value in settings(place).items()}
    changes |= {"output_dir": str(place / "run")}
    (place / "run.yaml").write_text("kind: rl\n")
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    command = [sys.executable, "-m", "areal", "train", str(place / "run.yaml"), *overrides]
    metrics = place / "run/metrics.jsonl"
    with user(place) as scores, subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None and not (metrics.is_file() and '"step":2' in metrics.read_text()):
            time.sleep(0.02)
        run.kill()
        run.wait(60)
        known = scores()
    assert run.returncode == -signal.SIGKILL
    (place / "ready.json").unlink()
    with user(place, first=500) as scores:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=200)
        known |= scores()
    assert_trained_once(place / "run", known)
