"""SGLang servers take weights by broadcast and from shards: verified before they are used, and exact."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time

import pytest
import torch

from areal.api import EngineError
from areal.infra.weights.broadcast import BroadcastCarrier
from areal.infra.weights.shards import ShardCarrier

engines = sys.modules["contract_engines"]
EXACT = 2e-5
pytestmark = pytest.mark.timeout(400)
TRAINED = "layers.1.mlp"


def broadcast(model):
    return BroadcastCarrier(backend="gloo", device="cpu", bucket_bytes=16384, timeout_seconds=120.0, deltas=True)


def shards(model):
    return ShardCarrier(engines.LoneRank(model), backend="gloo", device="cpu", timeout_seconds=120.0, deltas=True)


@pytest.fixture(
    params=[
        ("double", broadcast),
        pytest.param(("double", shards), marks=pytest.mark.exhaustive),
        pytest.param(("sglang", broadcast), marks=[pytest.mark.exhaustive, pytest.mark.slow]),
    ],
    ids=lambda value: f"{value[0]}, {value[1].__name__}",
)
def subject(request, tmp_path, fork_server):
    """An engine over one server."""
    kind, build = request.param
    model = engines.build_model()
    with contextlib.ExitStack() as stack:
        command = pool = None
        if kind == "double":
            pool = engines.RunningServer(
                stack.enter_context(engines.forked_double(fork_server, "sglang", tmp_path, model))
            )
        elif not engines.SGLANG_PYTHON.is_file():
            pytest.skip("no SGLang here: bash scripts/setup_sglang.sh")
        else:
            settings = engines.ServerEngineConfig(dtype="float32", max_concurrent=16)
            command = engines.sglang_command(tmp_path, model, settings)
        carrier = build(model)
        engine = engines.with_servers("sglang", command, model, tmp_path, carrier=carrier, pool=pool, max_concurrent=16)
        stack.callback(engine.close)
        engine.wait_ready()
        subject = engines.Subject(engine, model, "sglang")
        subject.carrier = carrier
        yield subject


def publish(subject):
    if isinstance(subject.carrier, ShardCarrier):
        subject.carrier._ranks.version = subject.engine.version + 1
    return subject.publish()


def exact(subject, version):
    responses = subject.generate(*(subject.request(3 + index, new=16, seed=index) for index in range(3)))
    assert all(set(response.output_versions) == {version} for response in responses)
    assert all(subject.deviation(response) < EXACT for response in responses)


def test_versions_arrive_whole_or_as_what_changed_and_a_request_goes_on(subject, tmp_path):
    exact(subject, 0)
    subject.change_weights(seed=1)
    assert publish(subject) == 1
    exact(subject, 1)
    whole = subject.engine.stats()["sent_bytes"]
    generator = torch.Generator().manual_seed(2)

    async def main():
        before = subject.engine.stats()["generated_tokens"]
        with engines.answers_held(tmp_path):
            task = asyncio.create_task(subject.engine.agenerate(subject.request(new=300)))
            while subject.engine.stats()["generated_tokens"] < before + 8:
                await asyncio.sleep(0.005)
            subject.old_models[1] = engines.copy.deepcopy(subject.model)
            with torch.no_grad():
                for name, parameter in subject.model.named_parameters():
                    if TRAINED in name:
                        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
            await asyncio.to_thread(publish, subject)
        return await task

    response = asyncio.run(main())
    stats = subject.engine.stats()
    assert 0 < stats["sent_bytes"] < whole / 2
    assert stats["sent_bytes"] + stats["skipped_bytes"] == whole
    cut = response.output_versions.index(2)
    assert response.output_versions == [1] * cut + [2] * (300 - cut)
    assert subject.deviation(response, model=subject.old_models[1], part=slice(0, cut)) < EXACT
    assert subject.deviation(response, part=slice(cut, None)) < EXACT
    exact(subject, 2)
    assert (stats["evictions"], stats["weight_failures"]) == (0, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("subject", [("double", broadcast)], indirect=True, ids=["double"])
def test_a_transfer_that_takes_longer_than_a_stall_is_none(subject, monkeypatch, tmp_path):
    send, config = BroadcastCarrier.send, subject.engine._config
    slow = dataclasses.replace(config, stall_seconds=3.0)
    monkeypatch.setattr(subject.engine._runner, "_config", slow)

    def sent_late(self):
        time.sleep(6.0)
        send(self)

    monkeypatch.setattr(BroadcastCarrier, "send", sent_late)
    subject.change_weights(seed=1)

    async def main():
        with engines.answers_held(tmp_path):
            task = asyncio.create_task(subject.engine.agenerate(subject.request(new=480)))
            while not subject.engine.stats()["generated_tokens"]:
                await asyncio.sleep(0.005)
            update = asyncio.create_task(asyncio.to_thread(publish, subject))
            await asyncio.sleep(1.0)
        later = asyncio.create_task(subject.engine.agenerate(subject.request(7, new=8)))
        return await asyncio.gather(task, later, update)

    cut, waited, _ = asyncio.run(main())
    assert set(cut.output_versions) == {0, 1}
    assert set(waited.output_versions) == {1}
    assert subject.deviation(waited) < EXACT
    assert subject.deviation(cut, part=slice(cut.output_versions.index(1), None)) < EXACT
    stats = subject.engine.stats()
    assert (stats["evictions"], stats["failed_calls"]) == (0, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("subject", [("double", broadcast)], indirect=True, ids=["double"])
def test_a_byte_that_changes_on_the_way_is_refused_and_the_server_goes_on_with_what_it_has(subject, monkeypatch):
    send = BroadcastCarrier._send_run

    def damage(self, run, tensors):
        name = run[0]["name"]
        send(self, run, {**tensors, name: tensors[name] + 1})

    before = engines.copy.deepcopy(subject.model)
    with monkeypatch.context() as patched:
        patched.setattr(BroadcastCarrier, "_send_run", damage)
        subject.change_weights(seed=1)
        with pytest.raises(
            EngineError, match=r"refused, the servers keep their weights: .*has other bytes than announced"
        ):
            publish(subject)
    (response,) = subject.generate(subject.request(5, new=16))
    assert set(response.output_versions) == {0}
    assert subject.deviation(response, model=before) < EXACT
    assert publish(subject) == 1
    exact(subject, 1)
    assert subject.engine.stats()["evictions"] == 0
