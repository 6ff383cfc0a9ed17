"""Servers that die, hang, answer nonsense or lie: requests go on with what they have; nothing false gets through."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
import torch

from areal.api import EngineError, FaultError, FaultKind, StopReason


def good_tokens(prompt_length, count):
    """What an undisturbed generation of the test server is."""
    return [2 + (prompt_length + index) % 18 for index in range(count)]


@pytest.mark.fault(
    row=5,
    injected="the connection is cut, or falls silent, after 5 tokens, twice in a row",
    seen="the request goes on at another server with exactly its tokens so far; every token carries its version",
)
@pytest.mark.parametrize("behaviour", ["drop:5", "stall:5"])
def test_a_generation_that_breaks_off_goes_on_elsewhere_with_its_tokens(world, behaviour):
    world.start(2, **({"stall_seconds": 1.0} if behaviour == "stall:5" else {}))
    for server in world.servers:
        server.script = [behaviour]
        # A client that learns of the cut before it has read what came earlier may never read it.
        server.may_drop = lambda: world.has_read(5 * sum(len(server.requests) for server in world.servers))
    # Whichever is asked first breaks off; the second one too, the third call finishes.
    response = world.one(new=12)
    assert response.output_tokens == good_tokens(2, 12)
    assert response.output_versions == [0] * 12
    assert response.stop_reason is StopReason.LENGTH
    calls = [body for server in world.servers for body in server.requests]
    resumed = [body for body in calls if len(body["token_ids"]) > 2]
    assert resumed, "no call began with the tokens of the one before"
    for body in resumed:
        done = len(body["token_ids"]) - 2
        assert body["token_ids"][2:] == good_tokens(2, done)
        assert body["sampling_params"]["max_tokens"] == 12 - done
    assert world.engine.stats()["salvaged_tokens"] >= 8


@pytest.mark.fault(
    row=7,
    injected="a stream that ends without its end mark",
    seen="a failed call, continued elsewhere",
)
def test_an_answer_without_its_end_mark_is_no_answer(world):
    world.start(1)
    world.servers[0].script = ["no_end"]
    assert world.one(new=12).output_tokens == good_tokens(2, 12)
    assert world.engine.stats()["failed_calls"] == 1


def test_a_continuation_draws_other_random_numbers(world):
    world.start(1)
    world.servers[0].script, world.servers[0].may_drop = ["drop:4"], lambda: world.has_read(4)
    world.one(new=8, seed=42)
    first, second = world.servers[0].requests
    assert first["sampling_params"]["seed"] == 42
    assert second["sampling_params"]["seed"] != 42


@pytest.mark.fault(
    row=7,
    injected="HTML, HTTP 500, HTTP 503 and cut JSON instead of an answer",
    seen="a failed call each; asked elsewhere; nothing of it reaches the tokens",
)
@pytest.mark.parametrize("behaviour", ["html", "status:500", "status:503", "truncated"])
def test_an_answer_that_is_no_answer_is_never_taken_for_text(world, behaviour):
    world.start(2)
    for server in world.servers:
        server.script = [behaviour]
    assert world.one(new=10).output_tokens == good_tokens(2, 10)
    assert world.engine.stats()["failed_calls"] == 2


@pytest.mark.fault(
    row=8,
    injected="wrong counts, None, NaN, a log-probability above 0 or clamped, tokens outside the vocabulary, labels "
    "that do not fit",
    seen="a generation_failed fault that says what was wrong; the next request is fine",
)
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("wrong_count", "1 tokens with 2 log-probabilities"),
        ("none", "None"),
        ("nan", "nan"),
        ("positive", "0.3"),
        ("clamped", "-9999"),
        ("foreign_token", "1000000"),
        ("spans", "labelled 9 tokens"),
        ("old_label", "version labels"),
        ("unfinished", "says 'stop'"),
    ],
)
def test_tokens_that_cannot_be_trained_on_are_a_fault_with_its_reason(world, behaviour, reason):
    world.start(1)
    world.servers[0].script = [behaviour]
    with pytest.raises(FaultError) as caught:
        world.one(new=10)
    assert caught.value.kind is FaultKind.GENERATION_FAILED
    assert reason in str(caught.value)
    assert world.one(new=10).output_tokens == good_tokens(2, 10)


@pytest.mark.fault(
    row=8,
    injected="NaN in three answers in a row",
    seen="the server is given up and replaced",
)
def test_a_server_that_keeps_sending_nonsense_is_given_up(world):
    world.start(1, max_consecutive_errors=3)
    world.servers[0].script = ["nan"] * 3
    for _ in range(3):
        with pytest.raises(FaultError):
            world.one()
    assert len(world.pool.evicted) == 1
    assert world.one().output_tokens == good_tokens(2, 10)


def test_a_request_the_server_calls_wrong_is_not_repeated(world):
    world.start(2)
    for server in world.servers:
        server.script = ["status:400"]
    with pytest.raises(FaultError) as caught:
        world.one()
    assert caught.value.kind is FaultKind.DATA_INVALID
    assert sum(len(server.requests) for server in world.servers) == 1


def test_attempts_are_bounded(world):
    world.start(1, max_attempts=3)
    world.servers[0].script = ["status:500"] * 10
    with pytest.raises(FaultError, match="3 calls failed"):
        world.one()
    assert len(world.servers[0].requests) == 3


@pytest.mark.fault(
    row=6,
    injected="a server with four requests sends no further token",
    seen="given up by its progress; all four requests end complete",
)
def test_a_silent_server_is_given_up_and_its_requests_go_on(world):
    world.start(1, stall_seconds=1.0)
    world.servers[0].script = ["stall:3"] * 4
    results = world.generate(*(world.request(new=8, seed=seed) for seed in range(4)))
    assert [result.output_tokens for result in results] == [good_tokens(2, 8)] * 4
    assert "no token for" in world.pool.evicted[0][1]


@pytest.mark.exhaustive
def test_a_slow_queue_is_no_silence(world):
    world.start(1, stall_seconds=1.5)
    world.servers[0].script = ["stall:0"]
    world.servers[0].delay = 0.1

    async def main():
        waiting = asyncio.create_task(world.engine.agenerate(world.request(new=5, seed=1)))
        while not world.servers[0].requests:
            await asyncio.sleep(0.005)
        busy = await world.engine.agenerate(world.request(new=25, seed=2))
        return busy, len(world.pool.evicted), await waiting

    busy, evicted_meanwhile, _ = asyncio.run(main())
    assert len(busy.output_tokens) == 25
    assert evicted_meanwhile == 0


def test_without_any_server_left_requests_end_with_the_reason(world):
    world.start(1, restarts=0, stall_seconds=0.5)
    world.servers[0].script = ["stall:1"]
    with pytest.raises(EngineError, match="no inference server is left"):
        world.one()


def test_a_server_without_the_needed_endpoints_is_refused_with_the_fix(world):
    world.start(1, restarts=0, ready=False, paths=("/health",))
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        world.engine.wait_ready(timeout=60)


@pytest.mark.fault(
    row=23,
    injected="another process answers at the port of a server that is gone",
    seen="recognised by its incarnation and refused",
)
def test_an_answer_from_another_process_at_the_port_is_recognised(world, monkeypatch):
    world.start(1, restarts=0, ready=False)
    world.engine.wait_ready(timeout=60)
    stale = world.servers[0]
    original = type(stale)._rpc
    monkeypatch.setattr(
        type(stale), "_rpc", lambda self, body: (setattr(self, "incarnation", "another"), original(self, body))[1]
    )
    world.pool.restarts = 0
    instance = world.engine._members.fleet.serving[0].instance
    with pytest.raises(EngineError, match="another process has that port"):
        world.engine.server_up(instance)


# ---- weight updates


@pytest.mark.fault(
    row=9,
    injected="the staged weights do not have the announced digests, once",
    seen="sent again; the update succeeds",
)
def test_a_damaged_transfer_is_tried_again(world):
    world.start(1)
    world.servers[0].refuse_stage = 1
    world.update(1)
    assert world.engine.version == 1
    assert world.engine.stats()["weight_retries"] == 1
    assert world.pool.evicted == []


@pytest.mark.fault(
    row=5,
    injected="one of two servers is gone when the weights are updated",
    seen="it is given up within seconds; the other one serves the new version",
)
def test_a_server_that_is_gone_does_not_hold_up_the_others(world):
    world.start(2)
    world.servers[0].close()
    world.pool.restarts = 0
    started = time.monotonic()
    world.update(1)
    assert time.monotonic() - started < 30  # half of `control_seconds`
    assert [name for name, _ in world.pool.evicted] == ["server-0"]
    assert world.one().output_versions == [1] * 10


@pytest.mark.fault(
    row=9,
    injected="no server accepts the staged weights",
    seen="the update fails loudly; version and answers stay those of before",
)
def test_weights_that_every_server_refuses_change_nothing(world):
    world.start(2)
    for server in world.servers:
        server.refuse_stage = 10
    for server in world.servers:
        server.calls.clear()
    with pytest.raises(EngineError, match="other bytes than announced"):
        world.update(1)
    assert world.engine.version == 0
    assert world.pool.evicted == []
    assert "/pause" not in world.servers[0].calls
    assert world.one().output_versions == [0] * 10
    for server in world.servers:
        server.refuse_stage = 0
    world.update(1)
    assert world.one().output_versions == [1] * 10


def test_a_server_that_fails_while_switching_is_replaced_and_gets_the_weights_first(world):
    world.start(2)
    world.servers[1].refuse_switch = 1
    world.update(1)
    assert world.engine.version == 1
    assert [name for name, _ in world.pool.evicted] == ["server-1"]
    world.engine.wait_ready(timeout=60)
    assert world.servers[1].label == "1"


@pytest.mark.fault(
    row=9,
    injected="a server says that it switched and keeps computing with other weights",
    seen="found by the probe after the switch, given up, started again with the right ones",
)
def test_a_server_that_keeps_its_old_weights_is_found_by_the_probe(world):
    world.start(2)
    world.servers[0].score = -0.7
    world.update(1)
    assert [name for name, _ in world.pool.evicted] == ["server-0"]
    assert "it does not use the weights it was sent" in world.pool.evicted[0][1]
    world.servers[0].score = -0.5
    world.engine.wait_ready(timeout=60)


@pytest.mark.fault(
    row=10,
    injected="a server computes with wrong weights between switch and probe, while requests are under way",
    seen="what it sampled in between is thrown away and sampled again",
)
def test_nothing_sampled_between_a_bad_switch_and_its_probe_is_kept(world):
    world.start(2, affinity_tokens=0)
    bad = world.servers[0]
    for server in world.servers:
        server.held, server.delay = 10, 0.02

    async def main():
        tasks = [asyncio.create_task(world.engine.agenerate(world.request(new=60, seed=seed))) for seed in range(2)]
        while not all(server.requests for server in world.servers):
            await asyncio.sleep(0.005)
        await world.sent(6)
        bad.score = -0.9
        update = asyncio.create_task(asyncio.to_thread(world.update, 1))
        while bad.label == "0":
            await asyncio.sleep(0.001)
        for server in world.servers:
            server.held = math.inf
        await update
        bad.score = -0.5
        return await asyncio.gather(*tasks)

    responses = asyncio.run(main())
    for response in responses:
        assert response.output_tokens == good_tokens(2, 60)
        assert response.output_versions == sorted(response.output_versions)
        assert set(response.output_versions) == {0, 1}
    assert len(world.pool.evicted) == 1
    # The cut generation lost what the bad server sent after its switch, and asked for it again.
    resumed = [body for server in world.servers for body in server.requests if len(body["token_ids"]) > 2]
    assert resumed


@pytest.mark.fault(
    row=5,
    injected="a server with version 1 hangs and is started again",
    seen="it gets version 1 before the first request; every token is labelled 1",
)
def test_a_restarted_server_gets_the_newest_weights_before_requests(world):
    world.start(1, stall_seconds=1.0)
    world.update(1)
    world.servers[0].label = "default"
    world.servers[0].script = ["stall:0"]
    response = world.one()
    assert response.output_versions == [1] * 10
    calls = world.servers[0].calls
    restart = len(calls) - 1 - calls[::-1].index("/openapi.json")
    assert calls[restart:].index("/update_weight_version") < calls[restart:].index("/inference/v1/generate") + 2


@pytest.mark.fault(
    row=10,
    injected="two updates during one generation",
    seen="tokens of versions 0, 1 and 2, in order",
)
def test_labels_follow_updates_during_a_generation(world):
    world.start(1)
    server = world.servers[0]

    async def main():
        server.held = 20
        task = asyncio.create_task(world.engine.agenerate(world.request(new=80)))
        for version in (1, 2):
            await world.sent(server.held)
            await asyncio.to_thread(world.update, version)
            server.held += 20
        server.held = math.inf
        return await task

    response = asyncio.run(main())
    assert response.output_tokens == good_tokens(2, 80)
    assert sorted(set(response.output_versions)) == [0, 1, 2]


def test_a_server_that_dies_after_an_update_leaves_only_tokens_of_known_versions(world):
    world.start(1)
    server = world.servers[0]
    server.held, server.may_drop = 10, lambda: world.has_read(40)
    server.script = ["drop:40"]

    async def main():
        task = asyncio.create_task(world.engine.agenerate(world.request(new=60)))
        await world.sent(2)
        await asyncio.to_thread(world.update, 1)
        server.held = math.inf
        return await task

    response = asyncio.run(main())
    assert response.output_tokens == good_tokens(2, 60)
    second = world.servers[0].requests[1]
    kept = len(second["token_ids"]) - 2
    assert 0 < kept < 40, "what came after the update has no certain version without the labels of the last message"
    assert response.output_versions == [0] * kept + [1] * (60 - kept)


def test_missing_parameters_are_refused_before_anything_travels(world):
    world.start(1)
    before = len(world.servers[0].calls)
    with pytest.raises(EngineError, match=r"1 unknown: extra"):
        world.update(1, extra=torch.ones(1))
    assert len(world.servers[0].calls) == before
