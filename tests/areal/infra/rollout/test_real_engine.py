"""The executor with the embedded engine, real weights that change under way, and a reward in a worker process."""

from __future__ import annotations

import time

import pytest
import torch

from areal.api import GenerationConfig, ModelRequest, RolloutWorkflow, Trajectory, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.infra.rollout.config import RolloutConfig
from areal.infra.rollout.executor import RolloutExecutor
from areal.models import from_config
from areal.reward.isolation import AsyncRewardWrapper

TINY = {
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.25,
}


class Scored(RolloutWorkflow):
    """One generation, scored by a real reward function in another process."""

    def __init__(self, reward):
        self.reward = reward

    async def arun_episode(self, engine, data):
        prompt = [2 + data["id"] % 29, 3, 4]
        response = await engine.agenerate(ModelRequest(input_ids=prompt, gconfig=GenerationConfig(max_new_tokens=12)))
        count = len(response.output_tokens)
        answer = str(response.output_tokens[0] % 2)
        reward = await self.reward("", answer, prompt, response.output_tokens, answer="1")
        return Trajectory(
            tokens=prompt + response.output_tokens,
            loss_mask=[0] * 3 + [1] * count,
            logprobs=[0.0] * 3 + response.output_logprobs,
            versions=[-1] * 3 + response.output_versions,
            turn_ids=[-1] * 3 + [0] * count,
            reward=reward,
            stop_reason=response.stop_reason,
        )


@pytest.fixture
def reward():
    wrapper = AsyncRewardWrapper("exact")
    wrapper.start()
    yield wrapper
    wrapper.close()


def weights(version):
    """The weights of a version: independent random models, so that a wrong label shows."""
    return from_config(TINY, seed=version)


def recomputed(version, trajectory):
    tokens = torch.tensor(trajectory.tokens)
    length = len(tokens)
    with torch.no_grad():
        logits = weights(version).forward(
            tokens, torch.arange(length), torch.tensor([0, length], dtype=torch.int32), length
        )
    chosen = torch.log_softmax(logits.float(), dim=-1)[:-1].gather(1, tokens[1:, None])[:, 0]
    return [0.0, *chosen.tolist()]


def run(world, reward, *, bound, steps, cut):
    """Trains nothing, but publishes other weights after every batch. cut: the backend interrupts what is in flight."""
    engine = EmbeddedEngine(weights(0), config=EmbeddedEngineConfig(max_batch_size=16), eos_token_id=1)
    config = RolloutConfig(batch_size=4, group_size=3, max_head_offpolicyness=bound)
    batches = []
    with RolloutExecutor(engine=engine, workflow=Scored(reward), rows=world.Rows(), config=config, seed=5) as rollout:
        rollout.start()
        for version in range(steps):
            batches.append(rollout.next_batch())
            if cut:
                engine.abort()
            state = weights(version + 1).state_dict()
            engine.update_weights(WeightUpdateMeta(kind="memory", version=version + 1, state_dict=state))
            rollout.advance(version + 1)
    engine.close()
    return batches


@pytest.mark.exhaustive
def test_synchronous_runs_are_bitwise_equal(world, reward):
    runs = [run(world, reward, bound=0, steps=4, cut=False) for _ in range(2)]
    trajectories = [[t for batch in batches for t in batch.trajectories] for batches in runs]
    assert trajectories[0] == trajectories[1]
    assert all(set(t.versions[3:]) == {t.group_id // 4} for t in trajectories[0])
    assert {t.reward for t in trajectories[0]} == {0.0, 1.0}


@pytest.mark.sample(1)
@pytest.mark.fault(
    row=10,
    injected="weights published while the engine decodes",
    seen="each token recomputed under the version on its label has the recorded log-probability",
)
@pytest.mark.parametrize("cut", [False, True])
def test_every_token_of_an_asynchronous_run_was_sampled_by_the_version_on_its_label(world, reward, cut):
    batches = run(world, reward, bound=2, steps=6, cut=cut)
    spans = 0
    for batch in batches:
        for group in batch.groups:
            for trajectory in group.trajectories:
                labels = trajectory.versions[3:]
                assert group.admitted_version <= min(labels)
                assert batch.version - 2 <= min(labels) <= max(labels) <= batch.version
                spans += len(set(labels)) > 1
                for version in set(labels):
                    expected = recomputed(version, trajectory)
                    for index, label in enumerate(trajectory.versions):
                        assert label != version or abs(expected[index] - trajectory.logprobs[index]) < 1e-4
    assert sum(batch.staleness.get(2, 0) for batch in batches) > 0
    assert sum(batch.interruptions for batch in batches) == 0 or cut


class Uneven(RolloutWorkflow):
    """One generation: short answers to the first four prompts, to others the longest that fit."""

    def __init__(self, *, short, long):
        self.short, self.long = short, long

    async def arun_episode(self, engine, data):
        prompt = [2 + data["id"] % 29, 3, 4]
        budget = GenerationConfig(max_new_tokens=self.short if data["id"] < 4 else self.long, min_new_tokens=self.short)
        response = await engine.agenerate(ModelRequest(input_ids=prompt, gconfig=budget))
        count = len(response.output_tokens)
        return Trajectory(
            tokens=prompt + response.output_tokens,
            loss_mask=[0] * 3 + [1] * count,
            logprobs=[0.0] * 3 + response.output_logprobs,
            versions=[-1] * 3 + response.output_versions,
            turn_ids=[-1] * 3 + [0] * count,
            reward=float(count),
            stop_reason=response.stop_reason,
        )


def test_surplus_leaves_the_engine_before_it_has_cost_its_tokens(world):
    engine = EmbeddedEngine(weights(0), config=EmbeddedEngineConfig(max_batch_size=16), eos_token_id=31)
    config = RolloutConfig(batch_size=4, group_size=2, max_head_offpolicyness=0, surplus_prompts=4)
    workflow = Uneven(short=4, long=56)
    with RolloutExecutor(engine=engine, workflow=workflow, rows=world.Rows(), config=config, seed=5) as rollout:
        rollout.start()
        assert [group.ordinal for group in rollout.next_batch().groups] == [0, 1, 2, 3]
        while engine.stats()["active"] or engine.stats()["waiting"]:
            time.sleep(0.001)
        spent = engine.stats()
        # Evaluations, for one, run while the trainer trains: the engine is theirs.
        rollout.evaluate([{"id": 0}], workflow=workflow)
        after = engine.stats()
    engine.close()
    assert spent["cancelled"] == 8
    assert spent["generated_tokens"] < 8 * 4 + 8 * 56 / 2
    assert after["generated_tokens"] - spent["generated_tokens"] <= 4
