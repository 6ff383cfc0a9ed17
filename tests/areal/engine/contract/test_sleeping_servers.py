"""Servers that lend their devices to the learner: every byte is free meanwhile, nothing is sampled before all of the
weights are there, and what is sampled then is what servers on devices of their own sample.

The double accounts for the memory of its device, and at level 2 really loses its weights.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request

import pytest

from areal.api import EngineError

engines = sys.modules["contract_engines"]
EXACT = 2e-5
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start(tmp_path, fork_server):
    """`start(level)`: an engine over one double, its model, and the address of the double, which may be running."""
    import contextlib

    with contextlib.ExitStack() as stack:

        def build(level, name="served", api="vllm", address=""):
            model = engines.build_model()
            address = address or stack.enter_context(engines.forked_double(fork_server, api, tmp_path / name, model))
            engine = engines.with_servers(
                api, None, model, tmp_path / name, pool=engines.RunningServer(address), sleep_level=level
            )
            stack.callback(engine.close)
            engine.wait_ready()
            return engines.Subject(engine, model, "vllm double"), address

        yield build


def device(address):
    with urllib.request.urlopen(f"{address}/memory", timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.parametrize(
    ("api", "level"),
    [
        pytest.param("vllm", 1, marks=pytest.mark.exhaustive),
        ("vllm", 2),
        pytest.param("sglang", 2, marks=pytest.mark.exhaustive),
    ],
)
def test_the_device_is_free_while_the_learner_works_and_a_request_goes_on_after_it(start, tmp_path, api, level):
    subject, address = start(level, api=api)
    full = device(address)
    assert full["peak"] == sum(full["held"].values()) > 0

    async def main():
        with engines.answers_held(tmp_path / "served"):
            task = asyncio.create_task(subject.engine.agenerate(subject.request(new=200)))
            while subject.engine.stats()["generated_tokens"] < 8:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(subject.engine.sleep)
        asleep = device(address)
        later = asyncio.create_task(subject.engine.agenerate(subject.request(7, new=8)))
        await asyncio.sleep(0.3)
        assert not task.done()
        assert not later.done()
        assert set(asleep["held"].values()) == {0}
        for change in (subject.engine.pause, subject.engine.resume, subject.engine.sleep):
            with pytest.raises(EngineError, match="only update_weights wakes them"):
                await asyncio.to_thread(change)
        assert device(address) == asleep
        subject.change_weights(seed=1)
        await asyncio.to_thread(subject.publish)
        return await asyncio.wait_for(asyncio.gather(task, later), 60)

    cut, waited = asyncio.run(main())
    assert set(waited.output_versions) == {1}
    assert subject.deviation(waited) < EXACT
    before = cut.output_versions.count(0)
    assert 8 <= before < 200 == len(cut.output_tokens)
    assert cut.output_versions == [0] * before + [1] * (200 - before)
    assert subject.deviation(cut, model=subject.old_models[0], part=slice(0, before)) < EXACT
    assert subject.deviation(cut, part=slice(before, None)) < EXACT
    found = device(address)
    assert (found["held"], found["peak"]) == (full["held"], full["peak"]), "never more than one model and one cache"
    log = found["log"][found["log"].index(f"sleep {level}") :]
    # The first thing that is computed is the probe.
    assert log[:4] == [f"sleep {level}", "wake weights", "load 1", "wake kv_cache"]
    assert set(log[4:]) == {"generate"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", [1, 2])
def test_samples_are_to_the_bit_those_of_a_server_with_a_device_of_its_own(start, level):
    """Over several steps."""
    found = []
    for name, lends in (("apart", False), ("shared", True)):
        subject, _ = start(level if lends else 0, name)
        answers = []
        for step in range(3):
            requests = [subject.request(3 + index, new=24, seed=10 * step + index) for index in range(6)]
            # One by one: rounding depends on what is computed together.
            responses = [subject.generate(request)[0] for request in requests]
            answers += [(one.output_tokens, one.output_logprobs) for one in responses]
            if lends:
                subject.engine.sleep()
            subject.change_weights(seed=step)
            subject.publish()
        found.append(answers)
    assert found[0] == found[1]


@pytest.mark.exhaustive
def test_a_server_that_lost_its_weights_and_gets_no_others_never_answers_again(start, monkeypatch):
    """Nonsense without an error is what this would otherwise be."""
    subject, address = start(2)
    subject.engine.sleep()

    async def refuse(self, *arguments, **options):
        raise engines.ServerRefusedError("the version does not arrive")

    monkeypatch.setattr(engines.VLLMAdapter, "stage", refuse)
    subject.change_weights(seed=1)
    with pytest.raises(EngineError, match="refused"):
        subject.publish()
    with pytest.raises(EngineError, match="only update_weights wakes them"):
        subject.engine.resume()
    assert set(device(address)["held"].values()) == {0}
    began = time.monotonic()
    subject.engine.close()
    assert time.monotonic() - began < 60
    assert "generate" not in device(address)["log"][device(address)["log"].index("sleep 2") :]


@pytest.mark.exhaustive
def test_a_server_that_a_learner_left_asleep_is_woken_by_the_first_version_of_the_next(start):
    """The ranks of a job died while they had its device."""
    first, address = start(2)
    full = device(address)["held"]
    first.engine.sleep()
    first.engine.close()
    assert set(device(address)["held"].values()) == {0}
    second, _ = start(2, address=address)
    log = device(address)["log"]
    assert log[log.index("sleep 2") :][:4] == ["sleep 2", "wake weights", "load 0", "wake kv_cache"]
    assert device(address)["held"] == full
    assert second.deviation(second.generate(second.request(5, new=8))[0]) < EXACT
