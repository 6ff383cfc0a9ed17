"""Servers that join, are drained, move and vanish while a trainer works, found through a directory.

The servers are doubles of vLLM's API; each is announced here as `areal serve` announces it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from areal.engine.server.client import is_healthy
from areal.engine.vllm.adapter import VLLMAdapter
from areal.engine.vllm.identity import identify, release
from areal.infra.directory import open_directory, serve_directory
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.discovery import DirectoryPool
from areal.infra.supervisor.process import free_port
from areal.trainer.announcing import Announced

engines = sys.modules["contract_engines"]
DOUBLE = Path(__file__).with_name("double.py")
KEY = b"of these tests and nobody else's"
EXACT = 2e-5
pytestmark = pytest.mark.timeout(300)


class Site:
    """A directory, servers that announce themselves in it, and an engine that follows it."""

    def __init__(self, folder, fork_server, **options):
        self.fork_server, self.folder, self.model = fork_server, folder, engines.build_model()
        engines.write_config(folder / "model", self.model)
        self.service = serve_directory("127.0.0.1", KEY)
        self.directory = open_directory(self.service.url, KEY)
        self.processes, self.entries = {}, {}
        self.view = open_directory(self.service.url, KEY, timeout_seconds=0.3)
        pool = DirectoryPool(
            lambda: self.view.entries("server"),
            identify=lambda url, timeout: identify(url, timeout, owner="trainer"),
            health=is_healthy,
            release=lambda url, timeout: release(url, timeout, owner="trainer"),
            config=SupervisorConfig(poll_seconds=0.1, restart_pause_seconds=0.1, health_timeout_seconds=5.0),
            missing_seconds=1.0,
        )
        self.engine = engines.with_servers(
            "vllm",
            None,
            self.model,
            folder,
            pool=pool,
            adapter=VLLMAdapter(owner="trainer"),
            affinity_tokens=0,
            **options,
        )
        self.subject = engines.Subject(self.engine, self.model, "elastic")

    def start(self, name):
        """Start a server at a new port and announce it once it is ready, as a new one or in place of an earlier one."""
        port = free_port()
        self.processes[name] = self.fork_server.start(DOUBLE, ["vllm", str(self.folder / "model"), str(port)])
        url = f"http://127.0.0.1:{port}"
        until(lambda: is_healthy(url, 1.0))
        if name in self.entries:
            self.entries[name].update({"url": url})
        else:
            self.entries[name] = self.directory.announce("server", name, {"url": url}, 30)

    def drain(self, name):
        self.entries[name].update({**self.entries[name].lease.value, "draining": True})

    def servers_of(self, *responses):
        return {response.metadata["server"] for response in responses}

    def exact(self, version, count=8):
        """Generate; every token is of this version. Returns the names of the servers that took part."""
        subject = self.subject
        responses = subject.generate(*(subject.request(3 + index, new=24, seed=index) for index in range(count)))
        for response in responses:
            assert set(response.output_versions) == {version}
            assert subject.deviation(response) < EXACT
        return self.servers_of(*responses)

    def close(self):
        self.engine.close()
        self.view.close()
        self.directory.close()
        self.service.close()
        for process in self.processes.values():
            process.kill()


@pytest.fixture
def site(tmp_path, fork_server, request):
    """Nothing is started yet but the directory and the engine."""
    site = Site(tmp_path, fork_server, **getattr(request, "param", {}))
    yield site
    site.close()


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@pytest.mark.exhaustive
def test_servers_join_with_weights_are_drained_without_loss_and_move(site):
    stats = site.engine.stats
    site.start("a")
    site.engine.wait_ready()
    assert site.exact(0) == {"a"}
    site.subject.change_weights(seed=1)
    assert site.subject.publish() == 1
    site.start("b")
    until(lambda: stats()["servers"] == 2)
    assert site.exact(1) == {"a", "b"}

    async def drain_while_generating():
        """All requests that `a` has when it is drained are finished there."""
        with engines.answers_held(site.folder):
            tasks = [
                asyncio.create_task(site.engine.agenerate(site.subject.request(3 + index, new=200, seed=index)))
                for index in range(4)
            ]
            while stats()["active"] < 4:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(site.drain, "a")
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    responses = asyncio.run(drain_while_generating())
    assert site.servers_of(*responses) == {"a", "b"}
    assert all(site.subject.deviation(response) < EXACT for response in responses)
    until(lambda: stats()["servers"] == 1)
    assert site.exact(1) == {"b"}
    assert stats()["failed_calls"] == 0
    # Other trainers may have it now.
    until(lambda: identify(site.entries["a"].lease.value["url"], 5.0, owner="")[1])

    # The same place at another address, and with weights of its own.
    site.processes.pop("b").kill()
    site.start("b")
    until(lambda: stats()["starts"] == 3 and stats()["servers"] == 1)
    assert site.exact(1) == {"b"}


@pytest.mark.exhaustive
def test_a_server_is_in_use_as_long_as_it_answers_even_when_the_directory_is_gone(site):
    stats = site.engine.stats
    site.start("a")
    site.start("b")
    until(lambda: stats()["servers"] == 2)
    site.service.close()
    time.sleep(2.0)
    assert (stats()["servers"], site.exact(0)) == (2, {"a", "b"})
    # Empty when it is started again: longer than `missing_seconds` is too long, shorter is forgiven.
    port = int(site.service.url.rpartition(":")[2])
    with serve_directory("127.0.0.1", KEY, port=port):
        time.sleep(0.5)
        site.entries["a"].update(site.entries["a"].lease.value)
        until(lambda: stats()["servers"] == 1)
        time.sleep(0.5)
        assert site.exact(0) == {"a"}
        assert stats()["evictions"] == 1


@pytest.mark.exhaustive
def test_a_withdrawn_server_goes_and_the_run_waits_for_the_next_one(site):
    site.start("a")
    site.engine.wait_ready()
    site.entries.pop("a").withdraw()
    site.processes["a"].kill()
    until(lambda: site.engine.stats()["servers"] == 0)

    async def ask_before_anybody_is_there():
        task = asyncio.create_task(site.engine.agenerate(site.subject.request(new=24)))
        await asyncio.sleep(0.5)
        assert not task.done()
        await asyncio.to_thread(site.start, "c")
        return await asyncio.wait_for(task, 60)

    response = asyncio.run(ask_before_anybody_is_there())
    assert site.servers_of(response) == {"c"}
    assert site.subject.deviation(response) < EXACT


@pytest.mark.exhaustive
def test_a_server_that_ends_waits_until_its_trainer_has_let_it_go(site, tmp_path):
    """What `areal serve` does at SIGTERM."""
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    config = engines.ServerEngineConfig(directory=site.service.url, directory_key=str(key))
    site.start("a")
    url = site.entries.pop("a").lease.value["url"]
    with Announced(config, "a") as announced:
        announced.join(url, "life-1")
        site.engine.wait_ready()

        async def main():
            with engines.answers_held(site.folder):
                task = asyncio.create_task(site.engine.agenerate(site.subject.request(new=200)))
                while site.engine.stats()["active"] < 1:
                    await asyncio.sleep(0.005)
                assert not identify(url, 5.0, owner="")[1], "the trainer has it"
            await asyncio.to_thread(announced.drain, url)
            assert identify(url, 5.0, owner="")[1]
            return await asyncio.wait_for(task, 1)

        response = asyncio.run(main())
    assert len(response.output_tokens) == 200
    assert site.subject.deviation(response) < EXACT
    assert site.engine.stats()["failed_calls"] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("site", [{"drain_seconds": 0.0}], indirect=True)
def test_requests_that_outlast_the_drain_go_on_elsewhere_with_their_tokens(site):
    site.start("a")
    site.engine.wait_ready()

    async def main():
        with engines.answers_held(site.folder):
            task = asyncio.create_task(site.engine.agenerate(site.subject.request(new=400)))
            while site.engine.stats()["active"] < 1:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(site.start, "b")
            await asyncio.to_thread(site.drain, "a")
            await asyncio.to_thread(until, lambda: site.engine.stats()["servers"] == 1)
            site.processes.pop("a").kill()
        return await asyncio.wait_for(task, 60)

    response = asyncio.run(main())
    assert len(response.output_tokens) == 400
    assert site.subject.deviation(response) < EXACT
