"""Transfers of weights that fail: whose fault that is, and what the others are sent."""

from __future__ import annotations

import asyncio
import threading

import pytest

from areal.api import EngineError, PublishedWeights, SentWeights, ServerInstance, WeightManifest, WeightRoute
from areal.engine.config import ServerEngineConfig
from areal.engine.server.adapter import Capabilities
from areal.engine.server.errors import CalledOffError, ServerRefusedError
from areal.engine.server.fleet import Server
from areal.engine.server.updates import WeightUpdater

DELTA = WeightManifest(version=2, entries=(), since="one")
PUBLISHED = PublishedWeights(manifest=WeightManifest(version=2, entries=()), delta=DELTA)


class Site:
    """In the place of a carrier and of servers, all of which take part in a transfer or none. refusing: names of the
    servers that refuse at once. broken: the transfer fails by itself."""

    def __init__(self, *, refusing=(), broken=False):
        self.refusing, self.broken, self.rounds = refusing, broken, []
        self.servers = [
            Server(
                ServerInstance(name=name, incarnation="", url=f"http://{name}"),
                Capabilities(version="", keeps_requests=True, deltas=True),
                1,
                kept="one",
            )
            for name in ("a", "b", "c")
        ]
        self.updater = WeightUpdater(
            adapter=self, client=None, carrier=self, config=ServerEngineConfig(dtype="float32"), failed=None
        )

    def routes(self, published, servers, workers):
        self.rounds.append("".join(server.name for server in servers))
        self.awaits_refusal = any(server.name in self.refusing for server in servers)
        self.called_off, self.ended, self.failed = threading.Event(), threading.Event(), False
        return [WeightRoute() for _ in servers]

    def send(self):
        self.failed = self.broken or (self.awaits_refusal and self.called_off.wait(60))
        self.ended.set()
        if self.failed:
            raise EngineError("the transfer failed")

    def call_off(self, reason):
        self.called_off.set()

    def sent(self):
        return SentWeights(identity="two", num_bytes=1)

    async def stage(self, client, url, published, route, *, timeout):
        if url.removeprefix("http://") in self.refusing:
            raise ServerRefusedError(f"{url} refuses")
        await asyncio.to_thread(self.ended.wait, 60)
        await asyncio.sleep(0.05)  # the answer is on its way
        if self.failed:
            raise ServerRefusedError(f"{url} was left alone")


def test_a_transfer_that_fails_by_itself_is_an_attempt_of_all():
    site = Site(broken=True)
    problems = asyncio.run(site.updater._stage_patiently(site.servers, PUBLISHED))
    assert site.rounds == ["abc"] * 2
    assert len(problems) == 3
    assert not any(isinstance(error, CalledOffError) for error in problems.values())


@pytest.mark.parametrize("refusing", ["b", "bc"])
def test_those_that_one_server_kept_off_are_sent_what_changed_without_it(refusing):
    site = Site(refusing=tuple(refusing))
    taken, lost = asyncio.run(site.updater._stage_delta(site.servers, PUBLISHED))
    assert {server.instance.name for server in taken} == set("abc") - set(refusing)
    assert lost == {}
    assert [server.kept for server in site.servers] == ["" if name in refusing else "one" for name in "abc"]
    assert site.rounds[0] == "abc"
