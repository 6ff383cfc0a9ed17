"""Sessions on the embedded engine while weights change: every token has the log-probability of its version."""

from __future__ import annotations

import asyncio
import copy
import random

import pytest
import torch
from serving import run, serving, user
from tiny_engine import KEPT, embedded

from areal.api import GenerationConfig, WeightUpdateMeta
from areal.infra.rollout.episode import EpisodeEngine, EpisodeProgress
from areal.models import from_config
from areal.models.blocks.routing import RouteRecorder
from areal.testing.trajectories import recomputed_logprobs


def changed(model, seed):
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * parameter.std(correction=0) * torch.randn(parameter.shape, generator=generator))
    return other


async def converse(served, session, number, turns):
    messages = [user(f"question {number}")]
    for turn in range(turns):
        status, body = await served.post(
            "/v1/chat/completions", {"model": "m", "messages": messages, "n": 1 + (turn == 1)}, key=session.key
        )
        assert status == 200, body
        messages = [*messages, body["choices"][-1]["message"], user(f"more {turn}")]


async def wander(served, session, number, turns):
    """Ask at random: go on, go back to an earlier place, ask again, for two answers, streamed or not."""
    chance = random.Random(number)
    places = [[user(f"question {number}")]]
    for turn in range(turns):
        messages = chance.choice([places[-1], places[-1], chance.choice(places)])
        body = {"model": "m", "messages": messages, "n": chance.choice([1, 1, 2]), "stream": chance.random() < 0.4}
        status, answer = await served.post("/v1/chat/completions", body, key=session.key)
        assert status == 200, answer
        if body["stream"]:
            assert answer.endswith("data: [DONE]\n\n"), "nothing is cut by an update"
        else:
            said = chance.choice(answer["choices"])["message"]
            places.append([*messages, said, user(f"more {turn}")])


async def train(engine, models, done):
    while not done.is_set():
        await asyncio.sleep(0.004)  # several times in the shortest conversation
        version = engine.version + 1
        models[version] = changed(models[0], version)
        engine.pause()
        engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=models[version].state_dict()))
        engine.resume()


@pytest.mark.parametrize(
    ("talk_of", "num_sessions", "turns"),
    [(converse, 6, 3), pytest.param(wander, 64, 8, marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)])],
    ids=["in a line", "at random"],
)
def test_sessions_that_live_through_weight_updates_are_exact(model, talk_of, num_sessions, turns):
    async def talk():
        engine, models, done = embedded(model), {0: model}, asyncio.Event()
        async with serving(None, engine=engine, gconfig=GenerationConfig(max_new_tokens=24)) as served:
            sessions = [
                served.gateway.open(
                    EpisodeEngine(engine, seed_parts=("t", n), oldest_version=0, progress=EpisodeProgress()),
                    GenerationConfig(max_new_tokens=24),
                )
                for n in range(num_sessions)
            ]
            trainer = asyncio.create_task(train(engine, models, done))
            await asyncio.gather(*(talk_of(served, session, n, turns) for n, session in enumerate(sessions)))
            done.set()
            await trainer
            leaves = [leaf for session in sessions for leaf in session.trajectories(1.0)]
            trained = sum(session.trained_tokens for session in sessions)
            assert sum(sum(leaf.loss_mask) for leaf in leaves) == trained
            assert len(leaves) >= len(sessions)
            assert len({version for leaf in leaves for version in leaf.versions if version >= 0}) >= 3
            for leaf in leaves:
                expected = {v: recomputed_logprobs(leaf.tokens, models[v]) for v in set(leaf.versions) if v >= 0}
                for index, mask in enumerate(leaf.loss_mask):
                    if mask:
                        own = expected[leaf.versions[index]][index]
                        assert abs(leaf.logprobs[index] - own) < 1e-5 * max(1.0, abs(own))  # float32 rounds by size
            engine.close()

    asyncio.run(asyncio.wait_for(talk(), 500))


def test_a_parallel_agent_repeats_exactly(model):
    async def once(order):
        engine = embedded(model)
        async with serving(None, engine=engine) as served:
            own = EpisodeEngine(engine, seed_parts=("t",), oldest_version=0, progress=EpisodeProgress())
            session = served.gateway.open(own, GenerationConfig(max_new_tokens=12))
            await asyncio.gather(*(converse(served, session, n, 2) for n in order))
            engine.close()
            return sorted(leaf.tokens for leaf in session.trajectories(1.0))

    assert run(once([0, 1, 2])) == run(once([2, 0, 1]))


def test_sessions_carry_the_routes_of_every_token(model):
    mixture = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    own = {name: value for name, value in model.args.to_hf_config().items() if name in KEPT}
    routed = from_config({**own, **mixture, "model_type": "qwen3_moe", "head_dim": 16}, seed=1)

    async def talk():
        engine = embedded(routed, record_routes=True)
        async with serving(None, engine=engine) as served:
            own = EpisodeEngine(engine, seed_parts=("t",), oldest_version=0, progress=EpisodeProgress())
            session = served.gateway.open(own, GenerationConfig(max_new_tokens=12))
            await converse(served, session, 0, 3)
            engine.close()
            return session.trajectories(1.0)

    leaves = run(talk())
    assert leaves
    for leaf in leaves:
        given, recorder = len(leaf.tokens) - 1, RouteRecorder()
        bounds = torch.tensor([0, given]).int()
        with torch.no_grad():
            routed.hidden(torch.tensor(leaf.tokens[:-1]), torch.arange(given), bounds, given, routes=recorder)
        assert torch.equal(leaf.routes, recorder.routes(4))
