"""Which server gets a request: the one that has its prompt cached, unless others are much freer."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from areal.api import ServerInstance
from areal.engine.config import ServerEngineConfig
from areal.engine.server.adapter import Call, Capabilities
from areal.engine.server.fleet import Fleet, Server
from areal.engine.server.generation import CallProgress


def fleet_of(count, **options):
    async def build():
        return Fleet(ServerEngineConfig(**options))

    fleet = asyncio.run(build())
    for index in range(count):
        instance = ServerInstance(name=f"server-{index}", incarnation=f"life-{index}", url="http://x")
        capabilities = Capabilities(version="1", keeps_requests=True)
        fleet.servers[instance.name] = Server(instance=instance, capabilities=capabilities, version=0, serving=True)
    return fleet


def load(server, count):
    call = Call(call_id="x", prompt=[], max_tokens=1, min_tokens=0, stop_token_ids=(), temperature=1.0, top_p=1.0,
                top_k=0, seed=0, stream_interval=1)  # fmt: skip
    for _ in range(count):
        server.calls.add(CallProgress(call, 0))


def test_samples_of_one_prompt_go_to_one_server():
    fleet = fleet_of(4)
    assert len({fleet.choose([5, 6, 7]).instance.name for _ in range(10)}) == 1


def test_different_prompts_spread_over_all_servers():
    fleet = fleet_of(4)
    counts = Counter(fleet.choose([index, 3]).instance.name for index in range(400))
    assert len(counts) == 4
    assert min(counts.values()) > 50


def test_only_the_beginning_of_a_prompt_counts():
    fleet = fleet_of(4, affinity_tokens=2)
    assert len({fleet.choose([5, 6, tail]).instance.name for tail in range(20)}) == 1


def test_a_much_freer_server_is_preferred_to_a_warm_one():
    fleet = fleet_of(2, affinity_slack=3)
    warm = fleet.choose([5])
    load(warm, 3)
    assert fleet.choose([5]) is warm
    load(warm, 1)
    assert fleet.choose([5]) is not warm


def test_without_affinity_the_least_loaded_is_taken():
    fleet = fleet_of(3, affinity_tokens=0)
    load(fleet.servers["server-0"], 2)
    load(fleet.servers["server-2"], 1)
    assert fleet.choose([5]).instance.name == "server-1"


def test_when_a_server_goes_only_its_prompts_move():
    fleet = fleet_of(4)
    before = {index: fleet.choose([index]).instance.name for index in range(200)}
    fleet.servers["server-2"].serving = False
    after = {index: fleet.choose([index]).instance.name for index in range(200)}
    assert all(after[index] == name for index, name in before.items() if name != "server-2")
    assert "server-2" not in after.values()


@pytest.mark.parametrize("count", [1, 2])
def test_a_server_that_failed_the_request_is_taken_only_when_there_is_no_other(count):
    fleet = fleet_of(count)
    failed = fleet.choose([5]).instance.incarnation
    chosen = fleet.choose([5], avoid={failed}).instance.incarnation
    assert (chosen == failed) == (count == 1)
