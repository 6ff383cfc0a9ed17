"""A whole run that trains on sessions which a program of somebody else opens, holds and scores."""

from __future__ import annotations

import json
import os
import subprocess
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


def test_a_run_learns_from_sessions_of_an_openai_client_that_it_did_not_start(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_ADMIN_KEY", ADMIN)
    row = tmp_path / "visit.jsonl"
    row.write_text(json.dumps({"prompt": "1", "answer": ""}) + "\n")
    ready, report = tmp_path / "ready.json", tmp_path / "report.json"
    config = runs.tiny(
        tmp_path / "run",
        total_train_steps=4,
        model__init=runs.BASE["model.init"] | {"vocab_size": 22, "eos_token_id": 1, "pad_token_id": 0},
        model__tokenizer_path=str(TOKENIZER),
        train_dataset__path=str(row),
        workflow="outside_sessions",
        workflow_options={
            "key_variable": "AREAL_ADMIN_KEY",
            "ready_file": str(ready),
            "gateway": {"reward_deadline": 2.0, "drain_seconds": 0.5},
        },
        reward="unscored",
        gconfig__max_new_tokens=6,
        rollout__batch_size=3,
        rollout__group_size=1,
        rollout__max_head_offpolicyness=1,
        rollout__consume="drop",
        objective__advantage="reinforce_pp",
    )
    command = [str(PYTHON), str(Path(__file__).with_name("user_of_sessions.py")), str(ready), str(report), "200"]
    user = subprocess.Popen(command, env={**os.environ, "NO_PROXY": "127.0.0.1"}, stderr=subprocess.PIPE)
    try:
        summary, _ = runs.train(config)
        _, errors = user.communicate(timeout=60)
    finally:
        user.kill()
    assert (summary["steps"], user.returncode) == (4, 0), errors.decode()[-2000:]
    scores = [one["score"] for one in json.loads(report.read_text()) if one.get("score") is not None]
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [one for one in metrics if "reward/mean" in one]
    assert max(one["rollout/staleness_max"] for one in steps) <= 1
    assert sum(one.get("rollout/faults/reward_missing", 0) for one in steps) >= 1
    samples = [
        sample
        for line in (tmp_path / "run/rollouts.jsonl").read_text().splitlines()
        for sample in json.loads(line).get("samples", [])
    ]
    trained = [sample["reward"] for sample in samples]
    assert len(trained) == 4 * 3
    assert len(set(trained)) == len(trained), "no session is trained twice"
    assert set(trained) <= set(scores), "what nobody scored is not trained"
    assert all(sample["stats"]["agent/exact_continuation"] == 1.0 for sample in samples)
    assert all(sample["stats"]["agent/tokens_wasted"] == 0 for sample in samples)
