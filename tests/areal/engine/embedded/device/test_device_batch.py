"""Steps that stay on the device: the same answers as token by token, read late. Here the device is the CPU."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest
import torch

from areal.api import FaultError, ModelRequest, StopReason, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.device.graphs import StepGraphs
from areal.engine.embedded.device.results import STEPS_PER_READ, StepResults

SAMPLING = ({}, {"top_p": 0.8}, {"greedy": True}, {"temperature": 0.7, "top_k": 5})


def requests_of(world, count=20):
    """Of many lengths and settings; every third has the same prompt, and some stop early."""
    budgets = [1 + 7 * number % 50 for number in range(count)]
    return [
        world.request(
            1 + number % 3 * 11,
            prompt_seed=number % 3,
            seed=number,
            new=new,
            stop_token_ids=(5,) if number % 4 else tuple(range(12, 22)),
            min_new_tokens=min(new, number % 7),
            **SAMPLING[number % len(SAMPLING)],
        )
        for number, new in enumerate(budgets)
    ]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.output_tokens == other.output_tokens
        assert one.stop_reason is other.stop_reason
        assert one.output_logprobs == pytest.approx(other.output_logprobs, abs=1e-5)
        assert one.output_versions == other.output_versions


@pytest.fixture
def token_by_token(world):
    """Builds the engine of CPUs, by torch."""

    def build(model, *, batch=8, **options):
        config = EmbeddedEngineConfig(max_batch_size=batch, kernel="torch")
        return world.build_engine(model, config=config, **options)

    return build


MORE = pytest.mark.exhaustive


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("variant", "batch"),
    [
        ("dense", 8),
        ("sliding window", 3),
        ("mixture of experts", 32),
        *(
            pytest.param(variant, batch, marks=MORE)
            for variant, batch in [("dense", 3), ("dense", 32), ("sliding window", 8), ("mixture of experts", 3)]
        ),
    ],
)
def test_answers_are_those_of_the_engine_that_reads_every_token(world, on_device, token_by_token, variant, batch):
    model, requests = world.build_model(variant), requests_of(world)
    engine = on_device(model, batch=batch)
    found = world.generate(engine, requests)
    assert_same(found, world.generate(token_by_token(model, batch=batch), requests))
    assert {each.stop_reason for each in found} == {StopReason.STOP, StopReason.LENGTH}
    stats = engine.stats()
    assert stats["generated_tokens"] == sum(len(each.output_tokens) for each in found)
    assert (stats["active"], stats["waiting"], stats["finished"]) == (0, 0, len(requests))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", [pytest.param("off", marks=MORE), "auto"])
def test_answers_of_captured_steps_are_those_of_steps_as_they_are(world, on_device, graphs, mode):
    model, requests = world.build_model(), requests_of(world, 12)
    engine = on_device(model, mode=mode, batch=16)
    found = world.generate(engine, requests) + world.generate(engine, requests)
    assert_same(found, world.generate(on_device(model, batch=16), requests) * 2)
    replays = engine.stats()["replayed_steps"]
    assert (replays > engine.stats()["decode_steps"] / 2) if mode == "auto" else replays == graphs.made == 0


@pytest.mark.exhaustive
def test_captured_steps_compute_with_the_weights_of_an_update(world, on_device, token_by_token, graphs):
    first, second = world.build_model(seed=1), world.build_model(seed=2)
    request = world.request(12, seed=5, new=120)

    async def answer(engine):
        task = asyncio.create_task(engine.agenerate(request))
        while engine.stats()["generated_tokens"] < 40:
            await asyncio.sleep(0)
        meta = WeightUpdateMeta(kind="memory", version=1, state_dict=second.state_dict())
        await asyncio.to_thread(engine.update_weights, meta)
        return await asyncio.wait_for(task, 60)

    engine = on_device(first, mode="on", eos=None)
    found = asyncio.run(answer(engine))
    cut = found.output_versions.index(1)
    assert found.output_versions == [0] * cut + [1] * (120 - cut)
    assert world.deviation(first, found, last=cut) < 1e-5
    assert world.deviation(second, found, first=cut) < 1e-5
    assert engine.stats()["replayed_steps"] > 60


def test_an_abort_gives_what_has_been_computed_and_a_continuation_equals_the_whole(world, on_device):
    model = world.build_model()
    request = world.request(10, seed=3, new=40)
    whole = world.generate(on_device(model, eos=None), [request])[0]
    engine = on_device(model, eos=None)

    async def main():
        task = asyncio.create_task(engine.agenerate(request))
        while engine.stats()["decode_steps"] < 13:
            await asyncio.sleep(0)
        assert engine.abort([request.request_id]) == 1
        part = await task
        done = len(part.output_tokens)
        rest = ModelRequest(
            input_ids=request.input_ids + part.output_tokens,
            gconfig=dataclasses.replace(request.gconfig, max_new_tokens=40 - done),
            seed=request.seed,
            sampled_before=done,
        )
        return part, await engine.agenerate(rest)

    part, rest = asyncio.run(main())
    assert len(part.output_tokens) == 13  # those that had not been read, too
    assert part.output_tokens + rest.output_tokens == whole.output_tokens


def test_who_has_ended_before_an_abort_is_not_aborted(world, on_device):
    engine = on_device(world.build_model(), eos=None)

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(world.request(4, seed=n, new=3 + 30 * n))) for n in range(2)]
        while engine.stats()["decode_steps"] < 5:
            await asyncio.sleep(0)
        assert engine.abort() == 1
        return await asyncio.gather(*tasks)

    short, long = asyncio.run(main())
    assert (short.stop_reason, len(short.output_tokens)) == (StopReason.LENGTH, 3)
    assert (long.stop_reason, len(long.output_tokens)) == (StopReason.ABORT, 5)


class Digits:
    """A tokenizer of two letters per token."""

    @staticmethod
    def decode(tokens):
        return "".join(f"{token:02d}" for token in tokens)


@pytest.mark.exhaustive
def test_a_stop_string_cuts_what_was_computed_before_it_was_seen(world, on_device, token_by_token):
    model = world.build_model()
    whole = world.generate(token_by_token(model, eos=None), [world.request(6, seed=2, new=40)])[0].output_tokens
    stop = Digits.decode(whole[10:13])
    options = {"eos": None, "tokenizer": Digits()}
    requests = [world.request(6, seed=2, new=40, stop=(stop,)), *requests_of(world, 6)]
    found = world.generate(on_device(model, **options), requests)
    assert found[0].output_tokens == whole[:13]
    assert found[0].stop_reason is StopReason.STOP
    assert_same(found, world.generate(token_by_token(model, **options), requests))


def test_broken_weights_end_as_faults_and_leave_nothing_to_later_requests(world, on_device):
    model = world.build_model()
    engine = on_device(model, eos=None)
    good = {name: value.clone() for name, value in model.state_dict().items()}
    broken = {name: value * torch.nan for name, value in good.items()}
    requests = [world.request(5, seed=n, new=9) for n in range(3)]
    expected = world.generate(on_device(model, eos=None), requests)
    engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=broken))
    for request in requests:
        with pytest.raises(FaultError, match="not finite"):
            world.generate(engine, [request])
    engine.update_weights(WeightUpdateMeta(kind="memory", version=2, state_dict=good))
    found = world.generate(engine, requests)
    assert [each.output_tokens for each in found] == [each.output_tokens for each in expected]


READS = ("cpu", "item", "tolist", "nonzero", "numpy", "__bool__", "__float__", "__int__", "__index__")


@pytest.mark.exhaustive
@pytest.mark.parametrize("samples", [pytest.param(1, marks=MORE), 4])
@pytest.mark.parametrize(
    "sampling",
    [{}, pytest.param({"greedy": True}, marks=MORE), {"top_p": 0.9, "top_k": 7, "min_new_tokens": 5}],
)
def test_the_host_reads_once_in_eight_steps(world, on_device, monkeypatch, sampling, samples):
    engine, found = on_device(world.build_model(), eos=None), []
    for name in READS:
        original = getattr(torch.Tensor, name)

        def counted(tensor, *arguments, name=name, original=original, **options):
            found.append(name)
            return original(tensor, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)

    def reads_for(tokens):
        requests = [world.request(5, seed=seed, prompt_seed=0, new=tokens, **sampling) for seed in range(samples)]
        found.clear()
        assert [len(each.output_tokens) for each in world.generate(engine, requests)] == [tokens] * samples
        return list(found)

    reads_for(8)
    short, long = reads_for(2 * STEPS_PER_READ), reads_for(10 * STEPS_PER_READ)
    assert set(long) == {"numpy"}
    assert len(long) - len(short) == 8


@pytest.mark.exhaustive
def test_copies_that_take_their_time_are_not_waited_for_and_change_nothing(world, on_device, monkeypatch):
    model, requests, queued = world.build_model(), requests_of(world), []
    fetch, left = StepResults.fetch, [0]

    def begin(results):
        fetch(results)
        left[0] = 7

    def is_complete(results):
        left[0] -= 1
        queued.append(results.written)
        return left[0] < 0

    expected = world.generate(on_device(model), requests)
    monkeypatch.setattr(StepResults, "fetch", begin)
    monkeypatch.setattr(StepResults, "is_complete", property(is_complete))
    assert_same(world.generate(on_device(model), requests), expected)
    assert len(queued) > 50
    assert max(queued) == 2


def read_a_number(model):
    model.norm.register_forward_hook(lambda module, given, result: result * float(result.sum().isfinite()))
    return model


def use_a_library(model):
    """Of which only a capture finds that it needs the host."""
    model.norm.register_forward_hook(lambda module, given, result: result.cpu())
    return model


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "made", "reason"),
    [
        (read_a_number, 0, "the host waits for aten._local_scalar_dense"),
        (use_a_library, 1, "not permitted when stream is capturing"),
    ],
)
def test_a_step_that_cannot_be_captured_is_launched_as_it_is_and_one_line_says_why(
    world, on_device, graphs, caplog, change, made, reason
):
    caplog.set_level(logging.WARNING)
    requests = [world.request(3, seed=n, new=20) for n in range(2)]
    found = world.generate(on_device(change(world.build_model()), mode="auto"), requests)
    assert_same(found, world.generate(on_device(world.build_model()), requests))
    assert graphs.made == made
    lines = [each.getMessage() for each in caplog.records if "capture" in each.getMessage()]
    assert len(lines) == 1
    assert reason in lines[0]


MASK = torch.tensor([True, False, True, False])
COUNTS = torch.tensor([1, 0, 2, 1])
ONES = torch.ones(4)
NEEDS_THE_HOST = {
    "a number": lambda: COUNTS.sum().item(),
    "a comparison": lambda: torch.equal(ONES, COUNTS),
    "places": MASK.nonzero,
    "a choice": lambda: ONES[MASK],
    "values for a choice": lambda: ONES.index_put_((MASK,), torch.ones(2)),
    "repetitions": lambda: ONES.repeat_interleave(COUNTS),
    "an upload": lambda: torch.tensor([1, 2]),
}
STAYS_ON_THE_DEVICE = {
    "a choice by number": lambda: ONES[COUNTS],
    "one value for a choice": lambda: ONES.index_put_((MASK,), torch.ones(())),
    "repetitions of a known sum": lambda: ONES.repeat_interleave(COUNTS, output_size=4),
    "a mask": lambda: ONES.masked_fill(MASK, 1.0),
}


@pytest.mark.parametrize("name", [*NEEDS_THE_HOST, *STAYS_ON_THE_DEVICE])
def test_no_capture_is_begun_that_would_fail(graphs, name):
    steps = StepGraphs("auto", None)
    replays = [steps.run("a shape", {**NEEDS_THE_HOST, **STAYS_ON_THE_DEVICE}[name]) for _ in range(4)]
    assert replays == [False, False, *[name in STAYS_ON_THE_DEVICE] * 2]
    assert graphs.made == (name in STAYS_ON_THE_DEVICE)
    torch.cuda.empty_cache()


def test_graphs_that_must_be_used_and_cannot_be_captured_are_an_error(world, on_device, graphs):
    engine = on_device(read_a_number(world.build_model()), mode="on", eos=None)
    with pytest.raises(FaultError, match="cuda_graphs is 'on', but a decode step cannot be captured"):
        world.generate(engine, [world.request(4, new=8)])


def test_asking_for_graphs_on_a_cpu_says_what_to_set(world):
    with pytest.raises(Exception, match="cuda_graphs is 'on', but the engine computes on 'cpu'; set it to 'auto'"):
        world.build_engine(world.build_model(), config=EmbeddedEngineConfig(cuda_graphs="on"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures steps of a CUDA device; there is none")
def test_on_a_gpu_captured_steps_give_what_a_full_forward_gives(world):
    model = world.build_model().cuda()
    engine = world.build_engine(model, config=EmbeddedEngineConfig(max_batch_size=16, cuda_graphs="on"))
    for response in world.generate(engine, [world.request(6, seed=n, new=60) for n in range(16)]):
        assert world.deviation(model, response) < 1e-4
    assert engine.stats()["replayed_steps"] > 20
