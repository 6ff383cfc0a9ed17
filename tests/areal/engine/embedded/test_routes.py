"""Experts that routers chose while tokens were sampled: what is recorded, and what replaying it in training changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from areal.algorithm.packing import collate
from areal.api import ConfigError, StopReason, WeightUpdateMeta
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.models.blocks.routing import RouteRecorder, RouteReplay
from areal.models.value_head import ValueModel
from areal.workflow.assembly import TrajectoryBuilder

MIXTURE = "mixture of experts"


def routes_of_a_full_forward(model, tokens):
    recorder, length = RouteRecorder(), len(tokens)
    with torch.no_grad():
        model.hidden(
            torch.tensor(tokens), torch.arange(length), torch.tensor([0, length]).int(), length, routes=recorder
        )
    return recorder.routes(4)


def assert_recorded(model, response):
    given = [*response.input_tokens, *response.output_tokens][:-1]
    assert response.routes.dtype == torch.uint8
    assert torch.equal(response.routes, routes_of_a_full_forward(model, given))


def trajectory(response, *, group=0):
    builder = TrajectoryBuilder()
    builder.add_prompt(response.input_tokens)
    builder.add_response(response, turn=0)
    built = builder.build(reward=1.0, stop_reason=StopReason.LENGTH, text={})
    return replace(built, group_id=group)


def test_routes_are_those_of_a_full_forward_however_requests_share_and_wait(world):
    model = world.build_model(MIXTURE)
    engine = world.build_engine(model, eos=None, batch=5, record_routes=True)
    group = [world.request(20, prompt_seed=1, seed=i, new=6 + i) for i in range(9)]  # followers, and latecomers
    others = [world.request(length, seed=length, new=9) for length in (1, 2, 31, 7)]
    for response in world.generate(engine, [*group[:4], *others, *group[4:]]):
        assert_recorded(model, response)
    assert engine.stats()["shared_tokens"] > 100


def test_after_a_weight_update_tokens_keep_the_routes_that_they_were_sampled_with(world):
    old, new = world.build_model(MIXTURE, seed=0), world.build_model(MIXTURE, seed=7)
    engine = world.build_engine(old, eos=None, record_routes=True)

    async def main():
        task = asyncio.create_task(engine.agenerate(world.request(12, seed=1, new=24)))
        while engine.stats()["generated_tokens"] < 8:
            await asyncio.sleep(0)
        engine.pause()
        engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=new.state_dict()))
        engine.resume()
        return await task

    response = asyncio.run(main())
    tokens, num_old = [*response.input_tokens, *response.output_tokens], response.output_versions.count(0)
    assert 0 < num_old < 24
    border = len(response.input_tokens) + num_old - 1  # the newest token was given to the new weights
    assert torch.equal(response.routes[:border], routes_of_a_full_forward(old, tokens[:border]))
    assert torch.equal(response.routes[border:], routes_of_a_full_forward(new, tokens[:-1])[border:])


def test_replay_takes_the_recorded_experts_and_leaves_unrecorded_tokens_to_the_router(world):
    model = world.build_model(MIXTURE)
    tokens = torch.arange(2, 12)
    packed = (tokens, torch.arange(10), torch.tensor([0, 10]).int(), 10)
    own = routes_of_a_full_forward(model, tokens.tolist())
    with torch.no_grad():
        free, replayed = model.hidden(*packed), model.hidden(*packed, routes=RouteReplay(own))
        assert torch.equal(free, replayed)
        other = (own + 1) % 4
        other[6:] = 255
        changed = model.hidden(*packed, routes=RouteReplay(other))
        assert (changed[:6] != free[:6]).any(1).all()
        recorder = RouteRecorder()
        model.hidden(*packed, routes=recorder)
    assert torch.equal(recorder.routes(4), own)


def logp_differences(engine, batch):
    """Largest difference of each row between the sampler's log-probabilities and the trainer's."""
    trained = engine.forward_logp(batch, temperature=1.0, only_masked=True)
    return ((trained - batch.logp_behave) * batch.loss_mask).abs().amax(1)


def test_replay_removes_the_jumps_of_routers_that_another_rounding_turns(world):
    # Routers that see hardly anything: experts score alike, so that bfloat16 in another order of rows decides.
    model = world.build_model(MIXTURE, num_experts=32, num_experts_per_tok=2, hidden_size=64).bfloat16()
    with torch.no_grad():
        for layer in model.layers:
            layer.mlp.router.weight.mul_(0.01)
    engine = world.build_engine(model, eos=None, batch=16, record_routes=True)
    requests = [world.request(12, prompt_seed=i // 4, seed=i, new=40) for i in range(16)]
    responses = world.generate(engine, requests)
    batch = collate([trajectory(response, group=i // 4) for i, response in enumerate(responses)])
    settings = {"dtype": "bfloat16", "device": "cpu"}
    free = TrainingEngine(model, config=TrainEngineConfig(**settings))
    replaying = TrainingEngine(model, config=TrainEngineConfig(**settings, router_replay=True))
    without, with_replay = logp_differences(free, batch), logp_differences(replaying, batch)
    assert without.max() > 0.3, without
    assert with_replay.max() < 0.5 * without.max(), (with_replay, without)
    assert with_replay.mean() < 0.5 * without.mean(), (with_replay, without)


def test_gradients_of_the_router_flow_through_the_weights_of_replayed_experts(world):
    model = world.build_model(MIXTURE)
    tokens = torch.arange(2, 12)
    routes = (routes_of_a_full_forward(model, tokens.tolist()) + 1) % 4
    hidden = model.hidden(tokens, torch.arange(10), torch.tensor([0, 10]).int(), 10, routes=RouteReplay(routes))
    hidden.square().sum().backward()
    assert all(layer.mlp.router.weight.grad.abs().max() > 0 for layer in model.layers)


@pytest.mark.parametrize("model", ["dense", "critic"])
def test_replay_without_a_router_is_refused(world, model):
    actor = world.build_model("dense" if model == "dense" else MIXTURE)
    with pytest.raises(ConfigError, match=r"no router of ours"):
        TrainingEngine(
            actor if model == "dense" else ValueModel(actor),
            config=TrainEngineConfig(router_replay=True, device="cpu"),
            is_critic=model == "critic",
        )
    if model == "dense":
        with pytest.raises(ConfigError, match=r"no router of ours"):
            world.build_engine(actor, record_routes=True)
