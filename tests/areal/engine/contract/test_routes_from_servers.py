"""Experts that routers of servers choose: what arrives with a response, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest
import torch

from areal.api import StopReason
from areal.engine.server.routes import ServedRouters
from areal.models.blocks.routing import RouteRecorder

engines = sys.modules["contract_engines"]
NUM_EXPERTS = 8
MIXTURE = {"model_type": "qwen3_moe", "num_hidden_layers": 3, "num_experts": NUM_EXPERTS, "num_experts_per_tok": 2,
           "moe_intermediate_size": 32, "norm_topk_prob": True, "mlp_only_layers": [0],
           "decoder_sparse_step": 1}  # fmt: skip
ROUTERS = ServedRouters(num_layers=3, layers=(1, 2), num_experts=NUM_EXPERTS, top_k=2)
KINDS = ("vllm double", "sglang double", pytest.param("vllm", marks=pytest.mark.exhaustive))
pytestmark = pytest.mark.timeout(600)  # interpreted kernels of a real server


@pytest.fixture(scope="module", params=KINDS)
def subject(request, tmp_path_factory, fork_server):
    """An engine whose servers report routes, and its model."""
    kind, model = request.param, engines.build_model(**MIXTURE)
    folder = tmp_path_factory.mktemp("engine")
    with contextlib.ExitStack() as resources:
        if kind == "vllm":
            if not engines.vllm_reports_routes():
                pytest.skip("no vLLM here that reports routes: bash scripts/setup_vllm.sh --routes")
            config = engines.ServerEngineConfig(dtype="float32", max_concurrent=16)
            command = engines.vllm_command(folder, model, config, routes=True)
            options = {"max_concurrent": 16}
        else:
            api, command = kind.split()[0], None
            address = resources.enter_context(engines.forked_double(fork_server, api, folder, model, routes=True))
            options = {"pool": engines.RunningServer(address)}
        engine = engines.with_servers(kind.split()[0], command, model, folder, routers=ROUTERS, **options)
        resources.callback(engine.close)
        engine.wait_ready()
        yield engines.Subject(engine, model, kind, folder=folder)


def routes_of_a_full_forward(model, response):
    """Of all tokens but the last one, which no router has seen; experts in ascending order."""
    tokens, recorder = [*response.input_tokens, *response.output_tokens][:-1], RouteRecorder()
    length = len(tokens)
    with torch.no_grad():
        model.hidden(
            torch.tensor(tokens), torch.arange(length), torch.tensor([0, length]).int(), length, routes=recorder
        )
    return recorder.routes(NUM_EXPERTS).sort(-1).values


def assert_recorded(subject, response):
    assert response.routes.dtype == torch.uint8
    assert torch.equal(response.routes.sort(-1).values, routes_of_a_full_forward(subject.model, response))


@pytest.mark.sample(1)
def test_every_token_but_the_last_comes_with_its_experts_cached_prompt_included(subject):
    group = [subject.request(3, 4, 5, *range(1, 19), *range(1, 19), new=12, seed=seed) for seed in range(4)]
    for response in subject.generate(*group, subject.request(7, new=1), subject.request(7, 8, new=30, min_new_tokens=8,
                                                                                     stop_token_ids=(2,))):  # fmt: skip
        assert_recorded(subject, response)


@pytest.mark.sample(1)
def test_an_answer_that_a_stop_string_ends_has_all_of_its_experts(subject):
    (whole,) = subject.generate(subject.request(new=24, seed=3))
    letter = engines.Letters.decode(whole.output_tokens[9:10])
    (response,) = subject.generate(subject.request(new=200, seed=3, stop=(letter,)))
    assert response.stop_reason is StopReason.STOP
    assert_recorded(subject, response)


@pytest.mark.exhaustive
def test_an_answer_that_goes_on_under_new_weights_keeps_the_experts_it_was_sampled_with(subject):
    async def main():
        before = subject.engine.stats()["generated_tokens"]
        with engines.answers_held(subject.folder):
            tasks = [
                asyncio.create_task(subject.engine.agenerate(subject.request(4, 5, new=300, seed=seed)))
                for seed in range(3)
            ]
            while subject.engine.stats()["generated_tokens"] < before + 30:
                await asyncio.sleep(0.005)
            subject.change_weights(seed=1)
            await asyncio.to_thread(subject.publish)
        return await asyncio.gather(*tasks)

    old_version = subject.engine.version
    crossing = [response for response in asyncio.run(main()) if len(set(response.output_versions)) == 2]
    assert crossing
    for response in crossing:
        border = len(response.input_tokens) + response.output_versions.count(old_version) - 1
        found = response.routes.sort(-1).values
        new = routes_of_a_full_forward(subject.model, response)
        assert found.shape == new.shape
        assert torch.equal(found[border:], new[border:])
        # A server that cuts requests has lost what it chose by then; the one that goes on tells what it makes of them.
        keeps = not subject.kind.startswith("sglang")
        before = routes_of_a_full_forward(subject.old_models[old_version], response) if keeps else new
        assert torch.equal(found[:border], before[:border])
