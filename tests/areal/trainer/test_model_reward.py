"""A trained reward model as the reward of an RL run, in the process that rewards run in."""

from __future__ import annotations

import asyncio

import pair_runs
import pytest
import runs
import torch
from transformers import AutoModelForSequenceClassification

from areal.api import ConfigError, FaultError, FaultKind
from areal.engine.train.model_reward import ModelReward
from areal.infra.metrics.logger import read_metrics
from areal.reward.isolation import AsyncRewardWrapper

TARGET = "areal.engine.train.model_reward:ModelReward"


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory):
    """Folder of a model that has learnt to like large digits, and its trainer's tokenizer."""
    folder = tmp_path_factory.mktemp("reward")
    pairs = pair_runs.write_pairs(folder / "pairs", train=300, test=8)
    config = pair_runs.tiny(
        "reward_model", folder / "run", pairs, total_train_steps=15, batch_size=32, actor__lr=1e-2, valid_dataset=None
    )
    summary, trainer = pair_runs.train(config)
    return summary["checkpoint"], trainer.tokenizer


def ask(reward, tokenizer, prompt, completion, **data):
    ids = [tokenizer.encode(text) for text in (prompt, completion)]
    return reward(prompt, completion, ids[0], [*ids[1], tokenizer.eos_token_id], **data)


@pytest.mark.exhaustive
def test_a_worker_gives_the_score_of_the_trained_model(reward_model):
    path, tokenizer = reward_model
    wrapper = AsyncRewardWrapper(TARGET, options={"path": path, "scale": 2.0}, timeout_seconds=60)
    try:
        texts = [("12+3=", "99"), ("12+3=", "00"), ("40+1=", "5")]

        async def ask_all():
            return [await ask(wrapper, tokenizer, *text, answer="15") for text in texts]

        found = asyncio.run(ask_all())
    finally:
        wrapper.close()
    theirs = AutoModelForSequenceClassification.from_pretrained(path)
    for (prompt, completion), score in zip(texts, found, strict=True):
        ids = [*tokenizer.encode(prompt + completion), tokenizer.eos_token_id]
        expected = theirs(torch.tensor([ids])).logits.item()
        assert score == pytest.approx(2.0 * expected, abs=1e-4)
    assert found[0] > found[1]
    assert ask(ModelReward(path, own_tokenizer=True), tokenizer, "12+3=", "99") == pytest.approx(found[0] / 2, abs=1e-4)


@pytest.mark.exhaustive
def test_what_it_cannot_score_is_a_fault_and_no_score(reward_model):
    path, tokenizer = reward_model
    with pytest.raises(ConfigError, match="no folder"):
        ModelReward("no/such/folder")
    wrapper = AsyncRewardWrapper(TARGET, options={"path": path, "max_length": 4}, timeout_seconds=60)
    try:
        with pytest.raises(FaultError, match="more than its 4") as caught:
            asyncio.run(ask(wrapper, tokenizer, "12+3=", "99"))
        assert caught.value.kind == FaultKind.REWARD_RAISED
        with pytest.raises(FaultError, match="vocabulary has 17"):
            asyncio.run(wrapper("", "", [99], [1]))
    finally:
        wrapper.close()


@pytest.mark.exhaustive
def test_rl_runs_on_the_scores_of_a_reward_model(tmp_path, reward_model):
    path, _ = reward_model
    config = runs.tiny(
        tmp_path / "run",
        reward={"score": {"path": TARGET, "options": {"path": path}}},
        total_train_steps=2,
        rollout__reward_timeout_seconds=60,
    )
    summary, _ = runs.train(config)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert summary["finished"]
    assert all(row["reward/std"] > 0 for row in metrics.values())
