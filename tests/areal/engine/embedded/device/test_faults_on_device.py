"""Steps that fail, and rows that break, end what they hit and nothing else. Here the device is the CPU."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import Future

import pytest
import torch

from areal.api import FaultError, StopReason
from areal.engine.checks import RequestLimits
from areal.engine.embedded.device.batch import DeviceBatch
from areal.engine.embedded.device.results import StepResults
from areal.engine.embedded.sequence import Sequence

BROKEN = 31
"""A token that has no embedding in some tests."""


@pytest.fixture
def model(world):
    return world.build_model(tie_word_embeddings=False)


def batch_of(model, rows):
    return DeviceBatch(model, max_rows=rows, max_length=128, device=torch.device("cpu"), graphs="off")


def waiting(batch, request):
    limits = RequestLimits(context=128, vocab_size=32, eos_token_id=None)
    sequence = Sequence(request=request, future=Future(), limits=limits)
    batch.waiting.append(sequence)
    return sequence


def finish(batch):
    found = []
    while batch.has_work:
        found += batch.step(0)
    return dict(found)


def healthy(world, length, *, new, seed=0):
    """A request that neither has nor samples the token."""
    request = world.request(length, seed=seed, new=new, stop_token_ids=(BROKEN,), min_new_tokens=new)
    return dataclasses.replace(request, input_ids=[min(token, BROKEN - 1) for token in request.input_ids])


def broken(world, length, *, new):
    """A request whose first step has no numbers, and leaves none in the cache."""
    request = healthy(world, length, new=new)
    return dataclasses.replace(request, input_ids=[*request.input_ids[:-1], BROKEN])


def test_who_had_ended_before_a_step_failed_is_answered(world, model, monkeypatch):
    batch, hidden = batch_of(model, 1), model.hidden
    first, second = (waiting(batch, world.request(length, new=3)) for length in (4, 20))

    def fail(tokens, *arguments, **options):
        if len(tokens) == 19:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden(tokens, *arguments, **options)

    monkeypatch.setattr(model, "hidden", fail)
    found = finish(batch)
    assert found[first] is StopReason.LENGTH
    assert len(first.tokens) == 3
    assert "OutOfMemoryError: CUDA out of memory" in str(found[second])


def test_a_row_that_breaks_leaves_nothing_to_those_that_take_its_place(world, model):
    with torch.no_grad():
        model.embed_tokens.weight[BROKEN] = torch.nan
    batch = batch_of(model, 4)
    long = waiting(batch, broken(world, 30, new=60))
    found = dict(batch.step(0))
    short = [waiting(batch, healthy(world, 3, new=20, seed=seed)) for seed in range(3)]
    found |= finish(batch)
    assert "not finite" in str(found[long])
    assert [found[each] for each in short] == [StopReason.LENGTH] * 3


def test_a_row_that_moves_before_it_is_known_to_be_broken_leaves_nothing_either(world, model, monkeypatch):
    with torch.no_grad():
        model.embed_tokens.weight[BROKEN] = torch.nan
    batch = batch_of(model, 2)
    first = waiting(batch, healthy(world, 3, new=8))
    found = [outcome for _ in range(8) for outcome in batch.step(0)]
    second = waiting(batch, broken(world, 30, new=60))
    with monkeypatch.context() as patches:
        patches.setattr(StepResults, "is_complete", False)
        found += batch.step(0)
    assert not found  # the second one has broken, and nobody has seen it
    third = waiting(batch, healthy(world, 3, new=20))
    assert batch.step(0) == [(first, StopReason.LENGTH)]
    assert batch.active == [second, third]
    found = finish(batch)
    assert "not finite" in str(found[second])
    assert found[third] is StopReason.LENGTH


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["is_complete", "read"])
def test_an_error_that_a_device_reports_late_ends_requests_as_faults(world, on_device, monkeypatch, name):
    engine, request = on_device(world.build_model(), eos=None), world.request(4, new=40)

    def fail(results):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    async def main():
        task = asyncio.create_task(engine.agenerate(request))
        while engine.stats()["decode_steps"] < 5:
            await asyncio.sleep(0)
        if name == "read":
            engine.abort()
        await asyncio.wait_for(task, 10)

    with monkeypatch.context() as patches:
        patches.setattr(StepResults, name, property(fail) if name == "is_complete" else fail)
        with pytest.raises(FaultError, match="CUDA error: an illegal memory access"):
            asyncio.run(main())
    assert len(world.generate(engine, [request])[0].output_tokens) == 40
