"""What `areal.api.InferenceEngine` promises, checked alike on the embedded engine, on vLLM and SGLang where they are
installed, and on doubles of both (a process that serves their API with our own engine behind it).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest
import torch

from areal.api import (
    ConfigError,
    EngineError,
    FaultError,
    FaultKind,
    InferenceEngine,
    ModelRequest,
    StopReason,
    WeightUpdateMeta,
)
from areal.models import save_pretrained

engines = sys.modules["contract_engines"]
pytestmark = pytest.mark.timeout(300)
EXACT = 2e-5


@pytest.mark.sample(2)
def test_it_is_an_inference_engine(subject):
    assert isinstance(subject.engine, InferenceEngine)


@pytest.mark.sample(2)
def test_every_token_has_its_log_probability_and_version(subject):
    requests = [subject.request(3 + index, 4, new=24, seed=index) for index in range(8)]
    for request, response in zip(requests, subject.generate(*requests), strict=True):
        assert response.input_tokens == request.input_ids
        assert len(response.output_tokens) == 24
        assert response.stop_reason is StopReason.LENGTH
        assert set(response.output_versions) == {subject.engine.version}
        assert subject.deviation(response) < EXACT


def test_log_probabilities_are_those_at_the_sampling_temperature(subject):
    (response,) = subject.generate(subject.request(new=24, temperature=0.6))
    assert subject.deviation(response, temperature=0.6) < EXACT
    assert subject.deviation(response) > 1e-2


def test_greedy_takes_the_most_probable_token_and_records_temperature_one(subject):
    (response,) = subject.generate(subject.request(new=12, greedy=True))
    assert subject.logprobs(subject.model, response).argmax(dim=-1).tolist() == response.output_tokens
    assert subject.deviation(response) < EXACT


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.6}])
def test_filtered_sampling_is_renormalised_or_refused(subject, options):
    request = subject.request(new=24, **options)
    if subject.kind.startswith("sglang"):
        with pytest.raises(ConfigError, match="unfiltered"):
            subject.generate(request)
        return
    (response,) = subject.generate(request)
    logp = subject.logprobs(subject.model, response)
    sampled = torch.tensor(response.output_tokens)[:, None]
    ranks = (logp > logp.gather(1, sampled)).sum(dim=1)
    kept = logp.topk(3, dim=-1).values.exp().sum(dim=-1) if "top_k" in options else None
    if kept is not None:
        assert int(ranks.max()) < 3
        expected = logp.gather(1, sampled)[:, 0] - kept.log()
        assert float((expected - torch.tensor(response.output_logprobs)).abs().max()) < EXACT
    else:
        assert all(
            recorded >= float(plain) - EXACT
            for recorded, plain in zip(response.output_logprobs, logp.gather(1, sampled)[:, 0], strict=True)
        )


def test_a_stop_token_ends_the_answer_and_is_part_of_it(subject):
    responses = subject.generate(*(subject.request(new=200, seed=seed, stop_token_ids=(7, 9)) for seed in range(4)))
    for response in responses:
        assert response.stop_reason is StopReason.STOP
        assert response.output_tokens[-1] in (7, 9)
        assert not {7, 9} & set(response.output_tokens[:-1])


def test_stop_tokens_are_forbidden_before_min_new_tokens(subject):
    (response,) = subject.generate(
        subject.request(new=60, min_new_tokens=20, stop_token_ids=tuple(range(2, 12)), seed=3)
    )
    assert len(response.output_tokens) >= 20
    assert not set(range(2, 12)) & set(response.output_tokens[:20])


def test_a_stop_string_ends_the_answer_where_it_is_complete(subject):
    how = {"greedy": not subject.seeded}
    plain = subject.generate(*(subject.request(3, 4, 5 + seed, new=60, seed=seed, **how) for seed in range(4)))
    for seed, response in enumerate(plain):
        text = "".join(chr(ord("a") + token) for token in response.output_tokens)
        stop = text[20:22]
        (stopped,) = subject.generate(subject.request(3, 4, 5 + seed, new=60, seed=seed, stop=(stop, "never"), **how))
        assert stopped.stop_reason is StopReason.STOP
        assert stopped.output_tokens == response.output_tokens[: text.index(stop) + 2]
        assert subject.deviation(stopped) < EXACT


@pytest.mark.parametrize("prompt", [[], [3] * 512, [3, 20], [-1]])
def test_a_request_that_can_never_run_is_refused(subject, prompt):
    with pytest.raises(FaultError) as caught:
        subject.generate(ModelRequest(input_ids=prompt, gconfig=subject.request().gconfig))
    assert caught.value.kind is FaultKind.DATA_INVALID


def test_requests_without_seed_are_samples_of_their_own(subject):
    gconfig = subject.request(new=12).gconfig
    answers = subject.generate(*(ModelRequest(input_ids=[3, 4, 5], gconfig=gconfig) for _ in range(8)))
    assert len({tuple(answer.output_tokens) for answer in answers}) == 8


def test_more_prompts_at_once_than_one_pass_of_a_server_takes(subject):
    prompts = [[(index + position) % 20 for position in range(100)] for index in range(40)]
    responses = subject.generate(*(subject.request(*prompt, new=3, seed=index) for index, prompt in enumerate(prompts)))
    assert [len(response.output_tokens) for response in responses] == [3] * 40
    assert max(subject.deviation(response) for response in responses[::8]) < EXACT


def test_an_answer_ends_at_the_end_of_the_context(subject):
    (response,) = subject.generate(subject.request(*[3] * 500, new=64))
    assert len(response.output_tokens) == 12
    assert response.stop_reason is StopReason.LENGTH


def test_the_same_seed_gives_the_same_tokens(subject):
    if not subject.seeded:
        pytest.skip("SGLang draws by seed in its deterministic mode only, which needs a GPU")
    one, other, different = subject.generate(
        subject.request(new=20, seed=5), subject.request(new=20, seed=5), subject.request(new=20, seed=6)
    )
    assert one.output_tokens == other.output_tokens
    assert one.output_tokens != different.output_tokens


async def _started(subject, tasks, wanted=1):
    """Wait until tokens of the tasks have been computed."""
    before = subject.engine.stats()["generated_tokens"]
    async with asyncio.timeout(60):
        while subject.engine.stats()["generated_tokens"] < before + wanted and not all(task.done() for task in tasks):
            await asyncio.sleep(0.005)


def test_abort_returns_what_there_is(subject):
    async def main():
        requests = [subject.request(3 + index, new=500, seed=index) for index in range(3)]
        with engines.answers_held(subject.folder):
            tasks = [asyncio.create_task(subject.engine.agenerate(request)) for request in requests]
            await _started(subject, tasks, 6)
            count = await asyncio.to_thread(subject.engine.abort, [requests[0].request_id])
            first = await asyncio.wait_for(tasks[0], 60)
            await asyncio.to_thread(subject.engine.abort)
        return count, [first, *await asyncio.wait_for(asyncio.gather(*tasks[1:]), 60)]

    count, responses = asyncio.run(main())
    assert count == 1
    for response in responses:
        assert response.stop_reason is StopReason.ABORT
        assert len(response.output_tokens) < 500
        if response.output_tokens:
            assert subject.deviation(response) < EXACT


def test_an_abort_right_after_a_request_ends_it_too(subject):
    async def main():
        with engines.answers_held(subject.folder):
            tasks = [
                asyncio.create_task(subject.engine.agenerate(subject.request(3 + index, new=500, seed=index)))
                for index in range(4)
            ]
            # The engine has them; whether the abort or they reach a server first is not known.
            await asyncio.sleep(0)
            await asyncio.to_thread(subject.engine.abort)
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    for response in asyncio.run(main()):
        assert response.stop_reason is StopReason.ABORT
        assert len(response.output_tokens) < 400


def test_an_abort_ends_no_request_whose_name_only_begins_alike(subject):
    async def main():
        requests = [
            ModelRequest(input_ids=[3, 4, 5], gconfig=subject.request(new=count).gconfig, request_id=name)
            for name, count in (("group", 500), ("group.1", 120), ("group.10", 120))
        ]
        with engines.answers_held(subject.folder):
            tasks = [asyncio.create_task(subject.engine.agenerate(request)) for request in requests]
            await _started(subject, tasks, 12)
            await asyncio.to_thread(subject.engine.abort, ["group"])
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    aborted, *others = asyncio.run(main())
    assert aborted.stop_reason is StopReason.ABORT
    assert [len(response.output_tokens) for response in others] == [120, 120]


def test_an_aborted_answer_can_be_continued(subject):
    async def main():
        request = subject.request(new=200, seed=1)
        with engines.answers_held(subject.folder):
            task = asyncio.create_task(subject.engine.agenerate(request))
            await _started(subject, [task], 4)
            await asyncio.to_thread(subject.engine.abort)
            partial = await task
        done = len(partial.output_tokens)
        rest = ModelRequest(
            input_ids=[*request.input_ids, *partial.output_tokens],
            gconfig=subject.request(new=200 - done).gconfig,
            seed=1,
            sampled_before=done,
        )
        return partial, await subject.engine.agenerate(rest)

    partial, rest = asyncio.run(main())
    assert len(partial.output_tokens) + len(rest.output_tokens) == 200
    assert subject.deviation(rest) < EXACT


def test_nothing_is_computed_while_paused_and_requests_wait(subject):
    async def main():
        with engines.answers_held(subject.folder):
            running = asyncio.create_task(subject.engine.agenerate(subject.request(new=300, seed=2)))
            await _started(subject, [running], 17)  # All that a held answer has: none of them is still on its way.
            await asyncio.to_thread(subject.engine.pause)
            await asyncio.to_thread(subject.engine.pause)
        waiting = asyncio.create_task(subject.engine.agenerate(subject.request(new=4)))
        await asyncio.sleep(0.15)
        settled = subject.engine.stats()["generated_tokens"]
        await asyncio.sleep(0.2)
        still = subject.engine.stats()["generated_tokens"]
        states = running.done(), waiting.done()
        await asyncio.to_thread(subject.engine.resume)
        await asyncio.to_thread(subject.engine.resume)
        return settled, still, states, await asyncio.wait_for(running, 60), await asyncio.wait_for(waiting, 60)

    settled, still, states, first, second = asyncio.run(main())
    assert settled == still
    assert states == (False, False)
    assert (len(first.output_tokens), len(second.output_tokens)) == (300, 4)
    assert subject.deviation(first) < EXACT


def test_a_cancelled_request_leaves_the_engine(subject):
    async def main():
        task = asyncio.create_task(subject.engine.agenerate(subject.request(new=500)))
        await _started(subject, [task])
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)
        return await asyncio.wait_for(subject.engine.agenerate(subject.request(new=4)), 60)

    assert len(asyncio.run(main()).output_tokens) == 4
    assert subject.engine.stats()["active"] == 0


def test_new_weights_are_used_at_once(subject):
    subject.change_weights(seed=11)
    version = subject.publish()
    assert subject.engine.version == version
    responses = subject.generate(*(subject.request(3 + index, new=24, seed=index) for index in range(4)))
    for response in responses:
        assert set(response.output_versions) == {version}
        assert subject.deviation(response) < EXACT
        assert subject.deviation(response, model=subject.old_models[version - 1]) > 1e-2


@pytest.mark.sample(2)
def test_requests_live_through_a_weight_update_with_exact_versions(subject):
    async def main():
        with engines.answers_held(subject.folder):
            tasks = [
                asyncio.create_task(subject.engine.agenerate(subject.request(3 + index, new=400, seed=index)))
                for index in range(4)
            ]
            await _started(subject, tasks, 40)
            subject.change_weights(seed=12)
            version = await asyncio.to_thread(subject.publish)
        return version, await asyncio.wait_for(asyncio.gather(*tasks), 90)

    version, responses = asyncio.run(main())
    for response in responses:
        assert len(response.output_tokens) == 400
        assert response.output_versions == sorted(response.output_versions)
        assert set(response.output_versions) == {version - 1, version}
        cut = response.output_versions.index(version)
        assert subject.deviation(response, model=subject.old_models[version - 1], part=slice(None, cut)) < EXACT
        assert subject.deviation(response, part=slice(cut, None)) < EXACT


def test_weights_can_come_from_a_checkpoint_folder(subject, tmp_path):
    subject.change_weights(seed=13)
    save_pretrained(subject.model, tmp_path / "checkpoint")
    version = subject.engine.version + 1
    subject.engine.update_weights(WeightUpdateMeta(kind="disk", version=version, path=tmp_path / "checkpoint"))
    (response,) = subject.generate(subject.request(new=24))
    assert set(response.output_versions) == {version}
    assert subject.deviation(response) < EXACT


def test_an_update_while_paused_takes_effect_on_resume(subject):
    async def main():
        with engines.answers_held(subject.folder):
            task = asyncio.create_task(subject.engine.agenerate(subject.request(new=300, seed=4)))
            await _started(subject, [task], 8)
            await asyncio.to_thread(subject.engine.pause)
        subject.change_weights(seed=14)
        version = await asyncio.to_thread(subject.publish)
        await asyncio.to_thread(subject.engine.resume)
        return version, await asyncio.wait_for(task, 60)

    version, response = asyncio.run(main())
    cut = response.output_versions.index(version)
    assert 0 < cut < 300
    assert subject.deviation(response, part=slice(cut, None)) < EXACT


@pytest.mark.parametrize("change", ["missing", "shape", "unknown", "version"])
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(subject, change):
    state, version = dict(subject.model.named_parameters()), subject.engine.version + 1
    if change == "missing":
        del state["norm.weight"]
    elif change == "shape":
        state["norm.weight"] = torch.ones(3)
    elif change == "unknown":
        state["norm.wait"] = torch.ones(3)
    else:
        version -= 1
    with pytest.raises(EngineError):
        subject.engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=state))
    assert subject.engine.version == (version if change == "version" else version - 1)
    (response,) = subject.generate(subject.request(new=8))
    assert subject.deviation(response) < EXACT


def test_a_folder_that_is_no_checkpoint_is_refused(subject, tmp_path):
    before = subject.engine.version
    with pytest.raises(EngineError):
        subject.engine.update_weights(WeightUpdateMeta(kind="disk", version=before + 1, path=tmp_path))
    assert subject.engine.version == before


def test_counters_are_numbers(subject):
    before = subject.engine.stats()
    subject.generate(subject.request(new=4))
    subject.publish()
    stats = subject.engine.stats()
    assert all(isinstance(value, float) for value in stats.values())
    assert stats["generated_tokens"] >= before["generated_tokens"] + 4
    assert stats["weight_updates"] == before["weight_updates"] + 1


def test_closing_returns_what_there_is_and_ends_it_for_good(last_subject):
    subject = last_subject

    async def main():
        with engines.answers_held(subject.folder):
            task = asyncio.create_task(subject.engine.agenerate(subject.request(new=500)))
            await _started(subject, [task], 4)
            await asyncio.to_thread(subject.engine.close)
            return await asyncio.wait_for(task, 60)

    response = asyncio.run(main())
    assert response.stop_reason is StopReason.ABORT
    subject.engine.close()
    with pytest.raises(EngineError):
        subject.generate(subject.request())
