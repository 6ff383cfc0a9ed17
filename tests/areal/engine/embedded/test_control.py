"""Pausing, aborting, updating weights, failing, cancelling and closing, from the loop and from other threads."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
import torch

from areal.api import ConfigError, EngineError, FaultError, FaultKind, ModelRequest, StopReason, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig

TOLERANCE = 1e-5


async def until(condition, *, seconds: float = 60) -> None:
    """Let the loop run until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition never came true"
        await asyncio.sleep(0)


def in_a_thread(call, *arguments) -> None:
    """Call from another thread while the loop of the requests stands still: they are not done however long it takes."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


def generated(engine) -> float:
    return engine.stats()["generated_tokens"]


def memory(model, version: int) -> WeightUpdateMeta:
    return WeightUpdateMeta(kind="memory", version=version, state_dict=model.state_dict())


def test_no_token_is_produced_while_paused_from_another_thread(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None)
    paused, counts = threading.Event(), []

    def trainer():
        while generated(engine) < 8:
            time.sleep(0.001)
        engine.pause()
        paused.set()
        counts.append(generated(engine))
        time.sleep(0.2)
        counts.append(generated(engine))
        engine.pause()
        engine.resume()
        engine.resume()

    async def main():
        thread = threading.Thread(target=trainer)
        thread.start()
        requests = [world.request(5, seed=i, new=120) for i in range(3)]
        answers = asyncio.gather(*map(engine.agenerate, requests))
        await until(lambda: generated(engine) >= 15)
        assert paused.wait(60)  # The loop stands still: however late the trainer comes, the answers are not done.
        responses = await answers
        thread.join()
        return responses

    responses = asyncio.run(main())
    assert counts[0] == counts[1]
    assert 8 <= counts[0] < 360
    assert [len(response.output_tokens) for response in responses] == [120] * 3
    assert max(world.deviation(model, response) for response in responses) < TOLERANCE


def test_a_paused_engine_accepts_requests_and_leaves_the_loop_idle(world):
    engine = world.build_engine(world.build_model(), eos=None)
    engine.pause()  # before there is any loop

    async def main():
        task = asyncio.create_task(engine.agenerate(world.request(5)))
        await asyncio.sleep(0.05)
        turns = len(asyncio.all_tasks())
        assert not task.done()
        assert generated(engine) == 0
        assert turns == 2  # this test and the request: no driver spins
        engine.pause()  # on the loop's own thread
        engine.resume()
        return await asyncio.wait_for(task, 60)

    assert len(asyncio.run(main()).output_tokens) == 16


def test_abort_returns_partial_output_of_the_named_requests_only(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, batch=3)
    requests = [world.request(6, seed=i, new=60) for i in range(5)]

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(request)) for request in requests]
        await until(lambda: generated(engine) >= 15)
        assert engine.abort([requests[0].request_id, requests[4].request_id, "unknown"]) == 2
        running, waiting = await asyncio.wait_for(asyncio.gather(tasks[0], tasks[4]), 60)
        assert (running.stop_reason, len(running.output_tokens)) == (StopReason.ABORT, 5)
        assert (waiting.stop_reason, waiting.output_tokens) == (StopReason.ABORT, [])
        others = await asyncio.gather(*tasks[1:4])
        assert engine.abort() == 0
        return [running, *others]

    responses = asyncio.run(main())
    assert [len(response.output_tokens) for response in responses[1:]] == [60] * 3
    assert max(world.deviation(model, response) for response in responses) < TOLERANCE


@pytest.mark.sample(1)
@pytest.mark.fault(
    row=10,
    injected="a weight update in the middle of requests",
    seen="both segments of each answer are exact under their own version",
)
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_requests_live_through_a_weight_update_with_both_segments_exact(world, kind, tmp_path):
    old, new = world.build_model(seed=1), world.build_model(seed=2)
    new.save_pretrained(tmp_path)
    engine = world.build_engine(old, eos=None, batch=3, version=4)
    requests = [world.request(3 + 4 * i, seed=i, new=90) for i in range(4)]  # the fourth waits for a slot

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(request)) for request in requests]
        await until(lambda: generated(engine) >= 30)
        meta = memory(new, 7) if kind == "memory" else WeightUpdateMeta(kind="disk", version=7, path=tmp_path)
        in_a_thread(engine.update_weights, meta)
        assert engine.version == 7
        return await asyncio.gather(*tasks)

    responses = asyncio.run(main())
    for response in responses[:3]:
        split = response.output_versions.index(7)
        assert split >= 10
        assert response.output_versions == [4] * split + [7] * (90 - split)
        assert world.deviation(old, response, last=split) < TOLERANCE
        assert world.deviation(new, response, first=split) < TOLERANCE
        assert world.deviation(old, response, first=split) > 0.1
    assert responses[3].output_versions == [7] * 90
    assert world.deviation(new, responses[3]) < TOLERANCE
    assert engine.stats()["recomputed_tokens"] > 0


def test_the_engine_keeps_its_own_copy_of_the_weights(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None)
    with torch.no_grad():
        before = {name: parameter.clone() for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert all(parameter.requires_grad for parameter in model.parameters())
    response = world.generate(engine, [world.request(7)])[0]
    assert world.deviation(model, response) > 0.01
    engine.update_weights(memory(model, 1))
    model.load_state_dict(before)
    again = world.generate(engine, [world.request(7)])[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert world.deviation(model, again) < TOLERANCE  # copied, not referenced


def test_shared_weights_follow_the_trainer_and_leave_it_trainable(world):
    model = world.build_model()
    ordinary, kept = model.project, []

    def project(hidden):
        # A model may keep tensors it made while generating; they must be usable in training.
        if not kept:
            kept.append(hidden.new_full((1,), 1.0))
        return ordinary(hidden) * kept[0]

    model.project = project
    engine = world.build_engine(model, eos=None, share_weights=True)

    async def main():
        task = asyncio.create_task(engine.agenerate(world.request(7, new=40)))
        await until(lambda: generated(engine) >= 10)
        engine.pause()
        tokens = torch.arange(2, 12)
        loss = model.forward(tokens, torch.arange(10), torch.tensor([0, 10], dtype=torch.int32), 10).logsumexp(-1).sum()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.05 * parameter.grad.sign())
        engine.update_weights(memory(model, 1))
        engine.resume()
        return await task

    response = asyncio.run(main())
    split = response.output_versions.index(1)
    assert world.deviation(model, response, first=split) < TOLERANCE
    assert world.deviation(model, response, last=split) > 0.01


def test_a_version_that_is_not_newer_is_refused(world):
    old, new = world.build_model(seed=1), world.build_model(seed=2)
    engine = world.build_engine(old, version=3)
    for version in (2, 3):
        with pytest.raises(EngineError, match=f"version {version} refused: the engine is at version 3"):
            engine.update_weights(memory(new, version))
    assert engine.version == 3
    assert world.deviation(old, world.generate(engine, [world.request(5)])[0]) < TOLERANCE


@pytest.mark.fault(
    row=9,
    injected="an update with tensors that are missing or of another shape",
    seen="fails loudly; the engine goes on with the weights and the version it had",
)
def test_a_state_dict_that_does_not_fit_changes_nothing(world, tmp_path):
    old, new = world.build_model(seed=1), world.build_model(seed=2)
    engine = world.build_engine(old)
    state = dict(new.state_dict())
    last = list(state)[-1]
    without = {name: tensor for name, tensor in state.items() if name != last}
    bad = {
        "1 missing": without,
        "1 unknown: surprise": {**state, "surprise": torch.zeros(1)},
        "1 of the wrong shape": {**state, last: torch.zeros(3, 3)},
    }
    for words, broken in bad.items():
        with pytest.raises(EngineError, match=words):
            engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=broken))
    with pytest.raises(EngineError, match="keeps its weights"):
        engine.update_weights(WeightUpdateMeta(kind="disk", version=1, path=tmp_path / "nothing"))
    assert engine.version == 0
    assert world.deviation(old, world.generate(engine, [world.request(5)])[0]) < TOLERANCE


def test_broken_weights_fail_typed_and_good_ones_heal_the_engine(world):
    model, broken = world.build_model(seed=1), world.build_model(seed=1)
    with torch.no_grad():
        broken.layers[0].self_attn.v_proj.weight[0, 0] = float("nan")
    engine = world.build_engine(model, eos=None)

    async def main():
        engine.update_weights(memory(broken, 1))
        results = await asyncio.gather(
            *(engine.agenerate(world.request(5, seed=i)) for i in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [FaultError] * 3
        assert all(result.kind is FaultKind.GENERATION_FAILED and "not finite" in str(result) for result in results)
        engine.update_weights(memory(model, 2))
        # Of lengths 1, 4 and 7: the first row sees, masked, what the broken weights left behind its own entries.
        return await asyncio.gather(*(engine.agenerate(world.request(1 + 3 * i, seed=i)) for i in range(3)))

    assert max(world.deviation(model, response) for response in asyncio.run(main())) < TOLERANCE
    assert engine.stats()["failed"] == 3


def test_only_the_request_with_non_finite_logits_fails(world):
    model = world.build_model(tie_word_embeddings=False)
    with torch.no_grad():
        model.embed_tokens.weight[31] = float("inf")  # whoever has token 31 in the prompt
    engine = world.build_engine(model, eos=None)
    poisoned = ModelRequest(input_ids=[5, 31, 6], gconfig=world.request(1).gconfig)
    good = [world.request(9, seed=i, new=20, top_k=1) for i in range(3)]
    good = [ModelRequest(input_ids=[i % 20 + 2 for i in r.input_ids], gconfig=r.gconfig) for r in good]

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(request)) for request in (good[0], poisoned, good[1])]
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, fault, last = asyncio.run(main())
    assert isinstance(fault, FaultError)
    assert fault.kind is FaultKind.GENERATION_FAILED
    for response in (first, last):
        assert 31 not in response.output_tokens
        assert len(response.output_tokens) == 20


def test_an_exception_in_the_model_fails_the_requests_and_not_the_engine(world, caplog):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, share_weights=True)
    ordinary = model.project
    armed = [True]

    def project(hidden):
        if armed[0]:
            raise RuntimeError("out of memory")
        return ordinary(hidden)

    model.project = project

    async def main():
        failed = await asyncio.gather(*(engine.agenerate(world.request(5)) for _ in range(2)), return_exceptions=True)
        armed[0] = False
        return failed, await engine.agenerate(world.request(5))

    failed, response = asyncio.run(main())
    assert all(isinstance(f, FaultError) and f.kind is FaultKind.GENERATION_FAILED for f in failed)
    assert "RuntimeError: out of memory" in str(failed[0])
    assert "decode step failed" in caplog.text
    assert world.deviation(model, response) < TOLERANCE


@pytest.mark.exhaustive
def test_cancelling_the_caller_frees_its_slot(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, batch=2)

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(world.request(5, seed=i, new=150))) for i in range(4)]
        await until(lambda: generated(engine) >= 6)
        assert (engine.stats()["active"], engine.stats()["waiting"]) == (2.0, 2.0)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        await until(lambda: engine.stats()["waiting"] == 0)
        assert engine.stats()["active"] == 2.0
        return await asyncio.gather(tasks[1], tasks[3])

    responses = asyncio.run(main())
    assert [len(response.output_tokens) for response in responses] == [150, 150]
    assert max(world.deviation(model, response) for response in responses) < TOLERANCE
    assert engine.stats()["cancelled"] == 2


def test_close_ends_requests_frees_memory_and_refuses_further_use(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, batch=1)

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(world.request(5, seed=i, new=150))) for i in range(2)]
        await until(lambda: generated(engine) >= 3)
        in_a_thread(engine.close)
        responses = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert [response.stop_reason for response in responses] == [StopReason.ABORT] * 2
        assert len(responses[0].output_tokens) >= 3
        with pytest.raises(EngineError, match="closed"):
            await engine.agenerate(world.request(5))

    asyncio.run(main())
    engine.close()
    engine.pause()
    engine.resume()
    assert engine.abort() == 0
    with pytest.raises(EngineError, match="closed"):
        engine.update_weights(memory(model, 1))
    gc.collect()
    assert sum(type(thing) is type(model) for thing in gc.get_objects()) == 1  # the caller's own


@pytest.mark.exhaustive
def test_one_engine_serves_one_loop_after_another_and_never_two_at_once(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None)
    for seed in range(2):
        assert world.deviation(model, world.generate(engine, [world.request(6, seed=seed)])[0]) < TOLERANCE

    async def main():
        task = asyncio.create_task(engine.agenerate(world.request(6, new=120)))
        await until(lambda: generated(engine) > 32)
        engine.pause()
        with pytest.raises(EngineError, match="second event loop"):
            await asyncio.to_thread(world.generate, engine, [world.request(6)])
        engine.resume()
        return await task

    assert len(asyncio.run(main()).output_tokens) == 120

    async def abandoned():
        task = asyncio.ensure_future(engine.agenerate(world.request(6, new=150)))
        await until(lambda: engine.stats()["active"] == 1)
        assert not task.done()

    asyncio.run(abandoned())
    assert world.deviation(model, world.generate(engine, [world.request(6, seed=9)])[0]) < TOLERANCE
    assert engine.stats()["active"] == 0


class LetterTokenizer:
    """Token i is a letter; enough to exercise stop strings."""

    @staticmethod
    def decode(ids):
        return "".join(chr(ord("a") + i % 26) for i in ids)


def test_stop_strings_end_at_the_completing_token_and_ignore_the_prompt(world):
    model = world.build_model()
    plain = world.generate(world.build_engine(model, eos=None), [world.request(9, seed=4, new=40)])[0]
    text = LetterTokenizer.decode(plain.output_tokens)
    stop = text[10:13]
    end = text.index(stop) + 3
    engine = world.build_engine(model, eos=None, tokenizer=LetterTokenizer())
    request = world.request(9, seed=4, new=40, stop=(stop, "~"))
    whole = world.generate(engine, [request])[0]
    assert (whole.output_tokens, whole.stop_reason) == (plain.output_tokens[:end], StopReason.STOP)
    # A continuation whose partial output already holds the first letters of the stop string; the same letters in the
    # prompt do not count.
    begun = ModelRequest(
        input_ids=request.input_ids + plain.output_tokens[: end - 1],
        gconfig=request.gconfig,
        seed=4,
        sampled_before=end - 1,
    )
    rest = world.generate(engine, [begun])[0]
    assert (rest.output_tokens, rest.stop_reason) == (plain.output_tokens[end - 1 : end], StopReason.STOP)
    with pytest.raises(ConfigError, match="without a tokenizer"):
        world.generate(world.build_engine(model), [request])


def test_the_thread_setting_holds_only_while_stepping(world):
    before = torch.get_num_threads()
    model = world.build_model()
    seen = []
    ordinary = model.project
    model.project = lambda hidden: (seen.append(torch.get_num_threads()), ordinary(hidden))[1]
    config = EmbeddedEngineConfig(num_threads=before + 1)
    world.generate(world.build_engine(model, config=config, share_weights=True), [world.request(3, new=4)])
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


def test_a_negative_number_of_threads_is_refused_before_a_decode_step_meets_it():
    with pytest.raises(ConfigError, match="num_threads is -1, expected >= 0"):
        EmbeddedEngineConfig(num_threads=-1)
