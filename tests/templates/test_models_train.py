"""A dense, a mixture and a latent-attention family in real training: SFT overfits, GRPO steps, transformers reloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.new.matrix import Sandbox

ROOT = Path(__file__).resolve().parents[2]

SHARED = """\
vocab_size: 19, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2,
    max_position_embeddings: 64, rms_norm_eps: 1e-6, initializer_range: 0.1, hidden_act: silu, eos_token_id: 1,
    pad_token_id: 0, bos_token_id: 1"""
FAMILIES = {
    "qwen3": "num_key_value_heads: 1, head_dim: 16, tie_word_embeddings: true",
    "qwen3_moe": "num_key_value_heads: 1, head_dim: 16, num_experts: 4, num_experts_per_tok: 2, "
    "moe_intermediate_size: 24, norm_topk_prob: true, mlp_only_layers: [0]",
    "deepseek_v3": "num_key_value_heads: 2, q_lora_rank: 16, kv_lora_rank: 12, qk_nope_head_dim: 8, "
    "qk_rope_head_dim: 8, v_head_dim: 12, n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 24, "
    "n_shared_experts: 1, first_k_dense_replace: 1, n_group: 2, topk_group: 1, routed_scaling_factor: 1.5",
}
"""model_type -> what its config says besides the shared fields. Those not in the repository are generated."""

MODEL = """\
num_threads: 1
model:
  init: {{model_type: {model_type}, {shared}, {own}}}
  tokenizer_path: "characters:0123456789+-*/=n\\n"
"""
SFT = """\
kind: sft
experiment_name: trained
trial_name: sft
total_train_steps: 40
batch_size: 8
actor: {lr: 0.01}
train_dataset: {name: sums_sft, options: {instruction: ""}}
"""
GRPO = """\
kind: rl
experiment_name: trained
trial_name: grpo
total_train_steps: 2
actor: {lr: 0.001}
train_dataset: {name: sums_rl, options: {instruction: ""}}
eval_sets: {test: {rows: 4, dataset: {name: sums_rl, split: test, options: {instruction: ""}}}}
workflow: rlvr
reward: gsm8k
gconfig: {max_new_tokens: 2}
rollout: {batch_size: 4, group_size: 4, max_head_offpolicyness: 1}
engine: {max_batch_size: 64, max_seq_len: 64, num_threads: 1}
objective: {preset: dapo}
"""
RELOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
from areal.models import from_pretrained
theirs = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
ours = from_pretrained(sys.argv[1]).eval()
tokens = torch.randint(3, 19, (14,), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    expected = theirs(tokens[None]).logits[0]
    bounds = torch.tensor([0, 14], dtype=torch.int32)
    actual = ours(tokens, torch.arange(14), bounds, 14)
torch.testing.assert_close(actual, expected, rtol=0, atol=5e-5 * max(1.0, expected.std().item()))
"""


def python(sandbox, *arguments):
    """Run the sandbox's own code; stdout."""
    environment = os.environ | {
        "PYTHONPATH": str(sandbox.root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=sandbox.root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(folder):
    """Training loss of each step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def newest_checkpoint(folder):
    """The last checkpoint of a run that transformers can load."""
    found = [path.parent for path in folder.rglob("config.json") if list(path.parent.glob("*.safetensors"))]
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A copy of the repository with a generated dataset of small sums."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(3)]
    source = folder / "sums.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sandbox = Sandbox.copy_of(ROOT, folder)
    python(sandbox, "-m", "tooling.new", "dataset", "sums", "--from", str(source), "--no-test")
    return sandbox


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "model_type",
    FAMILIES,
)
def test_a_generated_family_is_trained_and_reloaded_by_transformers(sandbox, tmp_path, model_type):
    if not (sandbox.root / "areal/models" / model_type).is_dir():
        python(sandbox, "-m", "tooling.new", "model", model_type, "--no-test")
    model = MODEL.format(model_type=model_type, shared=SHARED, own=FAMILIES[model_type])
    for name, configuration in (("sft", SFT), ("grpo", GRPO)):
        config, folder = tmp_path / f"{name}.yaml", tmp_path / name
        config.write_text(model + configuration, encoding="utf-8")
        python(sandbox, "-m", "areal", "train", str(config), f"output_dir={folder}")
        python(sandbox, "-c", RELOAD, str(newest_checkpoint(folder)))
    learned = losses(tmp_path / "sft")
    assert learned[-1] < 0.3 * learned[0], learned
    assert len(losses(tmp_path / "grpo")) == 2


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_generated_family_is_split_over_processes_without_changing_a_number(sandbox):
    if not (sandbox.root / "areal/models/deepseek_v3").is_dir():
        python(sandbox, "-m", "tooling.new", "model", "deepseek_v3", "--no-test")
    results = []
    for cases in ("latent tp=2", "latent dp_shard=2"):
        command = ("-m", "areal.engine.archon.equality", "--world-size", "2", "--only", cases, "--json")
        results += json.loads(python(sandbox, *command))["results"]
    assert {"latent tp=2", "latent dp_shard=2 ep=2"} <= {result["case"] for result in results}
    assert [result["case"] for result in results if not result.get("equal")] == []
