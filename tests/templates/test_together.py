"""Datasets, rewards and workflows, all generated, in real SFT and GRPO runs, and undone without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.new.matrix import Sandbox

ROOT = Path(__file__).resolve().parents[2]

MODEL = """\
num_threads: 1
model:
  init: {model_type: qwen3, vocab_size: 19, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
    num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16, max_position_embeddings: 64, rms_norm_eps: 1e-6,
    initializer_range: 0.1, rope_theta: 10000.0, tie_word_embeddings: true, hidden_act: silu, eos_token_id: 1,
    pad_token_id: 0}
  tokenizer_path: "characters:0123456789+-*/=n\\n"
actor: {lr: 0.001}
"""
CONFIGURATIONS = {
    "sft": """\
kind: sft
experiment_name: generated
trial_name: sft
total_train_steps: 3
batch_size: 8
train_dataset: {name: sums_sft, options: {instruction: ""}}
""",
    "grpo": """\
kind: rl
experiment_name: generated
trial_name: grpo
total_train_steps: 3
train_dataset: {name: sums_rl, options: {instruction: ""}}
eval_sets: {test: {rows: 8, dataset: {name: sums_rl, split: test, options: {instruction: ""}}}}
workflow: asking_twice
workflow_options: {feedback: "n"}
reward: last_digit
gconfig: {max_new_tokens: 2}
rollout: {batch_size: 4, group_size: 4, max_head_offpolicyness: 1}
engine: {max_batch_size: 64, max_seq_len: 64, num_threads: 1}
objective: {preset: dapo}
""",
}
RUNS = {
    "sft": ("sft",),
    "grpo": ("grpo",),
    "one_answer": ("grpo", "workflow=asking_once", "workflow_options={}", "reward={last_digit: 1.0, gsm8k: 0.5}"),
}
"""Configuration and changes of each run."""


def command(sandbox, module, *arguments):
    """Run a module of the sandbox's own code; stdout."""
    environment = os.environ | {
        "PYTHONPATH": str(sandbox.root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=sandbox.root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(sandbox, folder, name):
    """One short run; what its metrics and its rollouts say."""
    configuration, *changes = RUNS[name]
    config = folder / f"{name}.yaml"
    config.write_text(MODEL + CONFIGURATIONS[configuration], encoding="utf-8")
    command(sandbox, "areal", "train", str(config), f"output_dir={folder / name}", *changes)
    return [
        [json.loads(line) for line in (folder / name / file).read_text(encoding="utf-8").splitlines()]
        for file in ("metrics.jsonl", "rollouts.jsonl")
    ]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_generated_units_train_together_and_are_undone_without_a_trace(tmp_path):
    rows = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]
    source = tmp_path / "sums.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sandbox = Sandbox.copy_of(ROOT, tmp_path)
    before = sandbox.tree()
    units = (
        ("dataset", "sums", "--from", str(source)),
        ("reward", "last-digit", "--style", "exact"),
        ("workflow", "asking-twice", "--style", "multi_turn", "--max-turns", "2"),
        ("workflow", "asking-once", "--style", "single_turn"),
    )
    for unit in units:
        command(sandbox, "tooling.new", *unit, "--no-test")
    prompts = {row["question"] for row in rows}
    for name in RUNS:
        metrics, samples = train(sandbox, tmp_path, name)
        rollouts = [row for row in samples if "first_step" not in row]  # the first row says which attempt it is
        assert sum("train/loss" in line for line in metrics) == 3, name
        assert bool(rollouts) == (name != "sft")
        assert all(any(prompt in json.dumps(rollout) for prompt in prompts) for rollout in rollouts)
    for kind, name, *_ in reversed(units):
        command(sandbox, "tooling.new", "undo", kind, name)
    assert sandbox.git("status", "--porcelain") == ""
    assert sandbox.tree() == before
