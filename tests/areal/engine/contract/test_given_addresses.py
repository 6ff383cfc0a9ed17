"""Servers that somebody else starts, at given addresses: used while they answer, taken in again when they come back,
never with weights that were not sent to them by this very trainer.

The servers are doubles of vLLM's API, started and killed here as a person would.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from areal.api import ConfigError, EngineError
from areal.engine.config import ServerEngineConfig
from areal.engine.server import receiver
from areal.engine.server.client import is_healthy
from areal.engine.vllm.adapter import VLLMAdapter
from areal.infra.directory.address import own_address
from areal.infra.supervisor.process import free_port

engines = sys.modules["contract_engines"]
DOUBLE = Path(__file__).with_name("double.py")
EXACT = 2e-5
pytestmark = pytest.mark.timeout(300)


class Machine:
    """Somebody else's servers: started, killed and started again by hand."""

    def __init__(self, folder, count, server):
        self.server = server
        self.folder, self.model = folder, engines.build_model()
        engines.write_config(folder / "model", self.model)
        self.ports = [free_port() for _ in range(count)]
        self.processes = {}
        self.engines = []

    @property
    def addresses(self):
        return tuple(f"http://127.0.0.1:{port}" for port in self.ports)

    def start(self, index, *, model="model", wait=True):
        self.processes[index] = self.server.start(DOUBLE, ["vllm", str(self.folder / model), str(self.ports[index])])
        deadline = time.monotonic() + 60
        while wait and not is_healthy(self.addresses[index], 1.0):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def kill(self, index):
        self.processes.pop(index).kill()

    def engine(
        self, owner="one", *, poll_seconds=0.1, health_seconds=5.0, patience_seconds=1.0, carrier=None, **options
    ):
        """An engine over all addresses; `wait_ready` before use."""
        pool = engines.given_pool(
            self.addresses,
            owner,
            patience_seconds=patience_seconds,
            poll_seconds=poll_seconds,
            health_timeout_seconds=health_seconds,
        )
        built = engines.with_servers(
            "vllm",
            None,
            self.model,
            self.folder / owner,
            pool=pool,
            adapter=VLLMAdapter(owner=owner),
            carrier=carrier,
            addresses=self.addresses,
            wait_seconds=60.0,
            **options,
        )
        self.engines.append(built)
        return engines.Subject(built, self.model, "given")

    def close(self):
        for engine in self.engines:
            engine.close()
        for index in list(self.processes):
            self.kill(index)


@pytest.fixture
def machine(tmp_path, fork_server):
    """Two addresses; nothing is started yet."""
    machine = Machine(tmp_path, 2, fork_server)
    yield machine
    machine.close()


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def assert_exact(subject, version, *responses):
    for response in responses:
        assert set(response.output_versions) == {version}
        assert subject.deviation(response) < EXACT


def requests(subject, count=6, **options):
    return [subject.request(3 + index % 8, new=24, seed=index, **options) for index in range(count)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("carrier", ["disk", "broadcast"])
def test_servers_are_used_as_they_come_and_live_on_without_the_trainer(machine, carrier):
    subject = machine.engine(carrier=engines.gloo_carrier() if carrier == "broadcast" else None)
    machine.start(0)
    subject.engine.wait_ready(servers=1)
    assert_exact(subject, 0, *subject.generate(*requests(subject)))
    subject.change_weights(seed=1)
    assert subject.publish() == 1
    machine.start(1)
    subject.engine.wait_ready(servers=2)
    responses = subject.generate(*requests(subject, 12))
    assert {response.metadata["server"] for response in responses} == {"vllm-0", "vllm-1"}
    assert_exact(subject, 1, *responses)
    subject.engine.close()
    assert all(process.returncode is None for process in machine.processes.values())
    assert all(is_healthy(address, 1.0) for address in machine.addresses)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=5,
    injected="SIGKILL of a server at a given address while it generates; somebody starts it again, with other weights",
    seen="requests go on at the other one with their tokens; it gets the present weights before its first request",
)
def test_a_server_that_is_killed_and_started_again_by_hand_is_taken_in_again(machine):
    machine.start(0)
    machine.start(1)
    subject = machine.engine(affinity_tokens=0)
    subject.engine.wait_ready()

    async def main():
        with engines.answers_held(machine.folder):
            tasks = [
                asyncio.create_task(subject.engine.agenerate(subject.request(3 + index, new=120, seed=index)))
                for index in range(4)
            ]
            while subject.engine.stats()["generated_tokens"] < 40:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(machine.kill, 0)
        return await asyncio.wait_for(asyncio.gather(*tasks), 90)

    for response in asyncio.run(main()):
        assert len(response.output_tokens) == 120
        assert_exact(subject, 0, response)
    until(lambda: subject.engine.stats()["servers"] == 1)
    subject.change_weights(seed=2)
    assert subject.publish() == 1
    machine.start(0)
    subject.engine.wait_ready(servers=2)
    responses = subject.generate(*requests(subject, 12))
    assert {response.metadata["server"] for response in responses} == {"vllm-0", "vllm-1"}
    assert_exact(subject, 1, *responses)
    stats = subject.engine.stats()
    assert (stats["starts"], stats["evictions"]) == (3, 1)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=23,
    injected="a server at a given address is replaced by another start while nobody looks and nothing is in flight",
    seen="the labels of its tokens give it away: none counts, it gets the weights, the request is answered again",
)
def test_a_server_that_was_replaced_unseen_is_found_by_its_labels(machine):
    machine.ports = machine.ports[:1]
    machine.start(0)
    subject = machine.engine(poll_seconds=3600.0)
    subject.engine.wait_ready()
    assert_exact(subject, 0, *subject.generate(*requests(subject)))
    machine.kill(0)
    machine.start(0)
    # The monitor sleeps for an hour; it is the request that finds out.
    (response,) = subject.generate(subject.request(new=24))
    assert_exact(subject, 0, response)
    assert response.metadata["failed_calls"] == 1
    assert subject.engine.stats()["salvaged_tokens"] == 0
    assert subject.engine.stats()["starts"] == 2


@pytest.mark.exhaustive
def test_a_replaced_server_is_noticed_without_any_request(machine):
    machine.ports = machine.ports[:1]
    machine.start(0)
    subject = machine.engine()
    subject.engine.wait_ready()
    machine.kill(0)
    machine.start(0)
    until(lambda: subject.engine.stats()["starts"] == 2)
    assert_exact(subject, 0, *subject.generate(*requests(subject)))


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=6,
    injected="SIGSTOP of a server at a given address over a weight update, and SIGCONT",
    seen="it is left alone while it hangs, and gets the present weights before its next request",
)
def test_a_server_that_hangs_for_a_while_is_taken_in_again_with_the_present_weights(machine):
    machine.start(0)
    machine.start(1)
    subject = machine.engine(health_seconds=1.0, affinity_tokens=0)
    subject.engine.wait_ready()
    machine.processes[0].send_signal(signal.SIGSTOP)
    until(lambda: subject.engine.stats()["servers"] == 1)
    subject.change_weights(seed=3)
    assert subject.publish() == 1
    assert_exact(subject, 1, *subject.generate(*requests(subject)))
    machine.processes[0].send_signal(signal.SIGCONT)
    subject.engine.wait_ready()
    responses = subject.generate(*requests(subject, 12))
    assert {response.metadata["server"] for response in responses} == {"vllm-0", "vllm-1"}
    assert_exact(subject, 1, *responses)
    # The same start of it, but another stay.
    assert subject.engine.stats()["starts"] == 3


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=23,
    injected="two trainers are given the same server",
    seen="the second is refused with the name of the first, and gets the server when that one has ended",
)
def test_two_trainers_cannot_have_the_same_server(machine, caplog):
    machine.ports = machine.ports[:1]
    machine.start(0)
    first = machine.engine("one")
    first.engine.wait_ready()
    second = machine.engine("other", patience_seconds=3600.0)
    until(lambda: "it serves another trainer (one, last contact 0 s ago)" in caplog.text)
    assert second.engine.stats()["starts"] == 0
    assert_exact(first, 0, *first.generate(*requests(first)))
    first.engine.close()
    second.engine.wait_ready()
    assert_exact(second, 0, *second.generate(*requests(second)))


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=24,
    injected="a server at a given address was started in another dtype",
    seen="it is refused with the reason; started again rightly it is taken in",
)
def test_a_server_that_was_started_wrongly_is_refused_with_the_reason_until_it_is_right(machine):
    machine.ports = machine.ports[:1]
    config = (machine.folder / "model" / "config.json").read_text()
    (machine.folder / "wrong").mkdir()
    (machine.folder / "wrong" / "config.json").write_text(config.replace('"float32"', '"bfloat16"'))
    machine.start(0, model="wrong")
    subject = machine.engine(patience_seconds=0.5)
    with pytest.raises(EngineError, match=r"its dtype is bfloat16, expected that of servers.dtype, float32") as caught:
        subject.engine.wait_ready()
    assert machine.addresses[0] in str(caught.value)
    machine.kill(0)
    machine.start(0)
    until(lambda: subject.engine.stats()["servers"] == 1)
    assert_exact(subject, 0, *subject.generate(*requests(subject)))


def test_without_any_server_the_message_names_the_addresses_that_do_not_answer(machine, caplog):
    subject = machine.engine()
    with pytest.raises(EngineError, match="0 of 2 inference servers were ready"):
        subject.engine.wait_ready(timeout=1)
    assert all(f"at {address}: " in caplog.text for address in machine.addresses)


def test_a_trainer_that_is_not_heard_of_loses_its_servers(monkeypatch):
    held = receiver.Lease()
    assert held.take("one") == ""
    assert "serves another trainer (one" in held.take("other")
    assert "serves another trainer (one" in held.take("")
    held.release("other")
    assert held.owner == "one"
    monkeypatch.setattr(receiver, "LEASE_SECONDS", 0.0)
    held.hear("other")
    assert held.take("other") == ""
    held.release("other")
    assert held.take("") == ""


@pytest.mark.parametrize(
    "address",
    [
        "node1:8000",
        "http://node1",
        "http://node1:8000/",
        "https://node1:8000",
        "http://node1:port",
        "http://me@node1:1",
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match=r"expected http://HOST:PORT"):
        ServerEngineConfig(addresses=(address,))


def test_addresses_are_counted_and_told_apart():
    assert ServerEngineConfig(addresses=("http://127.0.0.1:1", "http://localhost:2")).all_local
    config = ServerEngineConfig(addresses=("http://127.0.0.1:1", "http://node1:2", "http://[::1]:3"))
    assert (config.count, config.all_local) == (3, False)
    with pytest.raises(ConfigError, match="each once"):
        ServerEngineConfig(addresses=("http://node1:1", "http://node1:1"))


def test_the_own_address_is_that_of_the_way_to_the_servers():
    assert own_address(()) == "127.0.0.1"
    assert own_address(("http://127.0.0.1:80",)) == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"set weights\.host"):
        own_address(("http://no-such-host.invalid:80",), setting="weights.host")
