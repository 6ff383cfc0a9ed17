"""Weights that no host has a copy of: servers that come when training has gone on get the next version, and no request
before it."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from areal.engine.vllm.adapter import VLLMAdapter
from areal.infra.supervisor.process import free_port
from areal.infra.weights.shards import ShardCarrier

engines = sys.modules["contract_engines"]
EXACT = 2e-5
pytestmark = pytest.mark.timeout(300)


class Site:
    """Two addresses of doubles, and an engine whose weights come from shards."""

    def __init__(self, folder, fork_server):
        self.model, self.fork_server, self.folder = engines.build_model(), fork_server, folder
        engines.write_config(folder / "model", self.model)
        self.ports, self.processes = [free_port(), free_port()], []
        addresses = tuple(f"http://127.0.0.1:{port}" for port in self.ports)
        self.ranks = engines.LoneRank(self.model)
        self.engine = engines.with_servers(
            "vllm",
            None,
            self.model,
            folder,
            pool=engines.given_pool(addresses, "trainer"),
            adapter=VLLMAdapter(owner="trainer"),
            carrier=ShardCarrier(self.ranks, backend="gloo", device="cpu", timeout_seconds=30),
            addresses=addresses,
            affinity_tokens=0,
        )
        self.subject = engines.Subject(self.engine, self.model, "shards")

    def start(self, index):
        command = engines.double_command("vllm", self.folder / "model")(index, self.ports[index])
        self.processes.append(self.fork_server.start(command.arguments[1], command.arguments[2:]))

    def train(self):
        """The weights move; nobody has those of the last version any more."""
        self.subject.change_weights(seed=self.ranks.version)
        self.ranks.version = -1

    def publish(self):
        self.ranks.version = self.engine.version + 1
        return self.subject.publish()

    def exact(self, version):
        subject = self.subject
        responses = subject.generate(*(subject.request(3 + index, new=24, seed=index) for index in range(8)))
        assert all(set(response.output_versions) == {version} for response in responses)
        assert all(subject.deviation(response) < EXACT for response in responses)
        return {response.metadata["server"] for response in responses}


@pytest.fixture
def site(tmp_path, fork_server):
    """An engine without servers yet."""
    site = Site(tmp_path, fork_server)
    yield site
    site.engine.close()
    for process in site.processes:
        process.kill()


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@pytest.mark.exhaustive
def test_a_server_that_comes_while_the_learner_is_at_work_gets_the_next_version_first(site, caplog):
    caplog.set_level("INFO")
    site.start(0)
    site.engine.wait_ready(servers=1)
    assert site.exact(0) == {"vllm-0"}
    site.train()
    site.start(1)
    until(lambda: "gets the next version, before its first request" in caplog.text)
    assert site.engine.stats()["servers"] == 1
    assert site.publish() == 1
    until(lambda: site.engine.stats()["servers"] == 2)
    assert site.exact(1) == {"vllm-0", "vllm-1"}
    assert site.engine.stats()["evictions"] == 0


@pytest.mark.exhaustive
def test_an_engine_that_is_closed_lets_a_waiting_server_go(site, caplog):
    caplog.set_level("INFO")
    site.train()
    site.start(0)
    until(lambda: "gets the next version, before its first request" in caplog.text)
    began = time.monotonic()
    site.engine.close()
    assert time.monotonic() - began < 25


@pytest.mark.exhaustive
def test_a_server_that_comes_between_two_steps_gets_a_stream_of_its_own_while_the_other_samples(site):
    site.start(0)
    site.engine.wait_ready(servers=1)

    async def main():
        with engines.answers_held(site.folder):
            task = asyncio.create_task(site.engine.agenerate(site.subject.request(new=300)))
            while site.engine.stats()["active"] < 1:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(site.start, 1)
            await asyncio.to_thread(site.engine.wait_ready)
        return await task

    response = asyncio.run(main())
    assert site.subject.deviation(response) < EXACT
    assert site.exact(0) == {"vllm-0", "vllm-1"}
