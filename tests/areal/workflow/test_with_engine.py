"""The workflows on the real embedded engine with a tiny real model: recorded numbers are recomputed from the model."""

from __future__ import annotations

import pytest
import torch

from areal.api import GenerationConfig
from areal.dataset.arithmetic import CHARACTERS
from areal.dataset.encoding import character_tokenizer
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.models import from_config
from areal.reward.exact import exact_reward
from areal.testing.episodes import run_episodes
from areal.workflow.multi_turn import MultiTurnWorkflow
from areal.workflow.rlvr import RLVRWorkflow

MODEL = {
    "model_type": "qwen3",
    "vocab_size": 17,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ROWS = [{"messages": f"{left}*{right}=", "answer": str(left * right)} for left in (2, 7, 8) for right in (3, 9)]


async def exact(prompt, completions, prompt_ids, completion_ids, /, **data):
    return exact_reward(prompt, completions, prompt_ids, completion_ids, **data)


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer(CHARACTERS)


@pytest.fixture(scope="module")
def model():
    return from_config(MODEL, seed=3).eval()


def episodes(model, tokenizer, workflow, max_seq_len=64):
    engine = EmbeddedEngine(
        model, config=EmbeddedEngineConfig(max_seq_len=max_seq_len), eos_token_id=tokenizer.eos_token_id, version=4
    )

    try:
        return run_episodes(workflow, engine, ROWS)
    finally:
        engine.close()


def recomputed(model, tokens):
    """Log-probability of each token given its prefix, from one plain forward; 0 for the first."""
    count = len(tokens)
    with torch.no_grad():
        bounds = torch.tensor([0, count], dtype=torch.int32)
        logits = model(torch.tensor(tokens), torch.arange(count), bounds, count)
    logp = torch.log_softmax(logits.float(), dim=-1)
    return [0.0, *(logp[index, tokens[index + 1]].item() for index in range(count - 1))]


def check(model, tokenizer, trajectory, prompt):
    count = len(tokenizer.encode(prompt))
    assert trajectory.tokens[:count] == tokenizer.encode(prompt)
    assert trajectory.loss_mask[:count] == [0] * count
    assert {v for v, m in zip(trajectory.versions, trajectory.loss_mask, strict=True) if m} == {4}
    for recorded, expected, sampled in zip(
        trajectory.logprobs, recomputed(model, trajectory.tokens), trajectory.loss_mask, strict=True
    ):
        assert recorded == pytest.approx(expected if sampled else 0.0, abs=1e-4)


def test_rlvr_records_what_the_engine_sampled(model, tokenizer):
    workflow = RLVRWorkflow(exact, GenerationConfig(max_new_tokens=6), tokenizer)
    for row, trajectory in zip(ROWS, episodes(model, tokenizer, workflow), strict=True):
        check(model, tokenizer, trajectory, row["messages"])
        assert trajectory.num_sampled == len(trajectory.tokens) - len(row["messages"]) <= 6
        assert trajectory.reward == float(trajectory.text["completion"] == row["answer"])


def test_multi_turn_continues_on_its_own_tokens_until_the_context_is_full(model, tokenizer):
    workflow = MultiTurnWorkflow(
        exact,
        GenerationConfig(max_new_tokens=3, stop_token_ids=tuple(range(1, 17))),
        tokenizer,
        max_turns=20,
        feedback="==",
    )
    for row, trajectory in zip(ROWS, episodes(model, tokenizer, workflow, max_seq_len=24), strict=True):
        check(model, tokenizer, trajectory, row["messages"])
        assert len(trajectory.tokens) <= 24
        turns = [turn for turn in trajectory.turn_ids if turn >= 0]
        assert turns == sorted(turns)
        assert max(turns) + 1 == trajectory.stats["num_turns"] > 1
