"""Servers without the newest endpoints: what they cannot do is found out by asking, and done another way or refused."""

from __future__ import annotations

import asyncio

import pytest

from areal.api import EngineError

OLDER = ("/collective_rpc", "/pause", "/resume", "/abort_requests", "/v1/completions", "/reset_prefix_cache")


def good_tokens(prompt_length, count):
    return [2 + (prompt_length + index) % 18 for index in range(count)]


def test_completions_serve_where_there_is_nothing_better(world):
    world.start(1, paths=OLDER)
    response = world.one(new=10)
    assert response.output_tokens == good_tokens(2, 10)
    assert response.output_logprobs == [-0.5] * 10
    assert response.output_versions == [0] * 10
    (body,) = world.servers[0].requests
    assert body["prompt"] == [3, 4]
    assert body["return_token_ids"] is True


def test_without_labels_requests_are_cut_before_an_update_and_continued_after_it(world):
    world.start(1, paths=OLDER)
    world.servers[0].held = 10

    async def main():
        task = asyncio.create_task(world.engine.agenerate(world.request(new=60)))
        await world.sent(2)
        await asyncio.to_thread(world.update, 1)
        world.servers[0].held = 60
        return await task

    response = asyncio.run(main())
    assert response.output_tokens == good_tokens(2, 60)
    assert set(response.output_versions) == {0, 1}
    assert response.output_versions == sorted(response.output_versions)
    assert world.servers[0].aborted >= 1
    assert world.engine.stats()["continued"] == 1
    assert world.engine.stats()["failed_calls"] == 0


def test_a_server_with_no_endpoint_for_generations_is_refused(world):
    world.start(1, paths=OLDER[:4], restarts=0, ready=False)
    with pytest.raises(EngineError, match="--enable-scale-out"):
        world.engine.wait_ready(timeout=60)


def test_parity_mode_scores_every_answer_once_more(world):
    world.start(1, parity=True)
    world.one(new=10)
    world.one(new=10, temperature=0.5)
    stats = world.engine.stats()
    assert stats["parity_checks"] == 1
    assert stats["parity_abs_max"] == 0


def test_parity_mode_refuses_what_one_forward_does_not_confirm(world):
    world.start(1, parity=True, parity_tolerance=1e-3)
    world.servers[0].score = -0.502
    with pytest.raises(EngineError, match=r"differ by up to 0\.002"):
        world.one(new=10)
