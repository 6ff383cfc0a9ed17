"""A training loop of one's own: it samples, learns from any reward, and saves a model."""

from __future__ import annotations

import threading

import pytest
import runs

import areal
from areal.api import ConfigError, LossOutput, UsageError

PROMPTS = [f"{a}*{b}=" for a in range(2, 4) for b in range(2, 4)]


def loop(**changes):
    """A loop on a tiny model."""
    return areal.PolicyLoop(
        **{
            "model": runs.BASE["model.init"],
            "tokenizer_path": runs.BASE["model.tokenizer_path"],
            "gconfig": {"max_new_tokens": 3},
            "engine": {"max_seq_len": 64},
            "actor": {"lr": 3e-3},
            "num_threads": 1,
            "seed": 3,
            "total_steps": 20,
            **changes,
        }
    )


def sevens(samples):
    """Sevens per answer, of at most three."""
    return sum(sample.completion.count("7") for sample in samples) / len(samples)


def test_it_learns_what_the_loop_rewards_and_saves_it(tmp_path):
    threads = set(threading.enumerate())
    with loop() as policy:
        first = policy.sample(PROMPTS, group_size=16)
        before = {name: value.clone() for name, value in policy.models.weights().items()}
        samples = first
        for step in range(1, 21):
            for sample in samples:
                sample.reward = float(sample.completion.count("7"))
            metrics = policy.update(samples)
            assert policy.actor.version == policy.engine.version == step
            samples = policy.sample(PROMPTS, group_size=16)
            assert {version for sample in samples for version in sample.response.output_versions} == {step}
        assert {"reward/mean", "train/loss"} <= set(metrics)
        assert sevens(samples) > sevens(first) + 1
        assert any((value != before[name]).any() for name, value in policy.models.weights().items())
        saved = policy.save(tmp_path / "model")
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name == "areal-loop"]
    limits = {"gconfig": {"max_new_tokens": 3}, "engine": {"max_seq_len": 64}}
    with areal.PolicyLoop(model=str(saved), num_threads=1, total_steps=1, **limits) as again:
        assert sevens(again.sample(PROMPTS, group_size=16)) > sevens(first) + 1


def test_samples_of_a_group_differ_and_groups_are_numbered():
    with loop() as policy:
        samples = policy.sample(PROMPTS[:2], group_size=8)
        assert [sample.prompt for sample in samples] == [PROMPTS[0]] * 8 + [PROMPTS[1]] * 8
        assert [sample.prompt_number for sample in samples] == [0] * 8 + [1] * 8
        assert len({sample.completion for sample in samples[:8]}) > 4
        again = policy.sample(PROMPTS[:2], group_size=8)
        assert not {sample.group for sample in again} & {sample.group for sample in samples}
        assert [item.completion for item in again] != [item.completion for item in samples]
    with loop() as same:
        assert [item.completion for item in same.sample(PROMPTS[:2], group_size=8)] == [
            item.completion for item in samples
        ]


async def test_a_loss_of_your_own_trains_inside_a_running_event_loop():
    with loop() as policy:
        samples = policy.sample(PROMPTS, group_size=4)
        for sample in samples:
            sample.reward = float(sample.completion.count("7"))
        batch = policy.learner.prepare([sample.trajectory() for sample in samples])
        total = float(batch.loss_mask.sum())

        def loss(logp, entropy, micro):
            return LossOutput(loss=-(logp * micro.advantages * micro.loss_mask).sum() / total, metrics={})

        assert policy.actor.train_batch(batch, loss).stepped
        policy.publish()
        assert policy.sample(PROMPTS[:1])[0].response.output_versions[0] == 1


def test_what_is_wrong_is_said(tmp_path):
    with loop() as policy:
        samples = policy.sample(PROMPTS[:1], group_size=2)
        with pytest.raises(UsageError, match="prompt 0 has no reward"):
            policy.update(samples)
        with pytest.raises(UsageError, match="no samples"):
            policy.update([])
        with pytest.raises(UsageError, match="group_size is 0"):
            policy.sample(PROMPTS, group_size=0)
    with pytest.raises(ConfigError, match=r"PolicyLoop\(\.\.\.\)\): unknown key"):
        loop(groop_size=3)
    with pytest.raises(ConfigError, match="archon splits the model"):
        loop(archon={})
