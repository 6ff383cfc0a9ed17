"""What the engine records is what a full forward says, however requests arrive, share, leave or are interrupted."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from areal.api import (
    FaultError,
    FaultKind,
    GenerationConfig,
    InferenceEngine,
    ModelRequest,
    StopReason,
    WeightUpdateMeta,
)
from areal.engine.config import EmbeddedEngineConfig

TOLERANCE = 1e-5


@pytest.mark.sample(2)
@pytest.mark.parametrize("variant", ["dense", "sliding window", "mixture of experts"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_a_full_forward_for_prompts_of_all_lengths(world, variant, temperature):
    model = world.build_model(variant)
    engine = world.build_engine(model, batch=5)  # fewer slots than requests: late joiners, leavers, compaction
    assert isinstance(engine, InferenceEngine)
    lengths = (1, 2, 7, 30, 3, 64, 11, 5, 5, 40, 90, 8)
    requests = [world.request(length, seed=i, new=24, temperature=temperature) for i, length in enumerate(lengths)]
    responses = world.generate(engine, requests)
    for request, response in zip(requests, responses, strict=True):
        assert response.input_tokens == request.input_ids
        assert world.deviation(model, response, temperature=temperature) < TOLERANCE
        assert response.output_versions == [0] * len(response.output_tokens)
        stopped = response.output_tokens[-1] == 1
        assert 1 not in response.output_tokens[:-1]
        assert response.stop_reason is (StopReason.STOP if stopped else StopReason.LENGTH)
        assert stopped or len(response.output_tokens) == 24
    assert {response.stop_reason for response in responses} == {StopReason.STOP, StopReason.LENGTH}


def test_a_group_shares_one_prefill_and_members_are_exact_and_different(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, batch=16)
    group = [world.request(20, prompt_seed=1, seed=i) for i in range(8)]
    other = [world.request(33, prompt_seed=2, seed=i) for i in range(4)]
    responses = world.generate(engine, [*group, *other])
    stats = engine.stats()
    assert stats["prefill_tokens"] == 20 + 33
    assert stats["shared_tokens"] == 7 * 20 + 3 * 33
    assert max(world.deviation(model, response) for response in responses) < TOLERANCE
    assert len({tuple(response.output_tokens) for response in responses}) == 12


def test_a_group_that_does_not_fit_at_once_shares_with_its_running_members(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, batch=4)
    group = [world.request(25, prompt_seed=1, seed=i, new=40) for i in range(4)]
    others = [world.request(20, prompt_seed=2, seed=i, new=3 + i) for i in range(3)]  # their slots go to the group
    responses = world.generate(engine, [group[0], *others, *group[1:]])
    assert engine.stats()["prefill_tokens"] == 25 + 20
    assert max(world.deviation(model, response) for response in responses) < TOLERANCE


def test_latecomers_join_a_running_batch_exactly(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None)

    async def main():
        first = asyncio.create_task(engine.agenerate(world.request(9, seed=1, new=60)))
        while engine.stats()["generated_tokens"] < 10:
            await asyncio.sleep(0)
        late = await engine.agenerate(world.request(30, seed=2, new=10))
        assert not first.done()
        return await first, late

    for response in asyncio.run(main()):
        assert world.deviation(model, response) < TOLERANCE


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", ["dense", "mixture of experts"])
def test_greedy_equals_transformers_generate_on_the_same_checkpoint(world, variant, tmp_path):
    from transformers import AutoModelForCausalLM

    model = world.build_model(variant)
    model.save_pretrained(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    engine = world.build_engine(model, eos=None)
    requests = [world.request(length, seed=length, new=20, greedy=True) for length in (3, 17, 40)]
    for request, response in zip(requests, world.generate(engine, requests), strict=True):
        ids = torch.tensor([request.input_ids])
        expected = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert response.output_tokens == expected[0, ids.shape[1] :].tolist()
        assert world.deviation(model, response) < TOLERANCE


def test_tokens_depend_on_the_seed_and_not_on_batch_mates(world):
    model = world.build_model()
    request = world.request(12, seed=5, new=30)
    alone = world.generate(world.build_engine(model), [request])[0]
    crowd = [world.request(4 + i, seed=100 + i, new=10 + 5 * i, temperature=0.5, top_k=3) for i in range(7)]
    together = world.generate(world.build_engine(model, batch=4), [*crowd[:3], request, *crowd[3:]])[3]
    assert together.output_tokens == alone.output_tokens
    torch.testing.assert_close(together.output_logprobs, alone.output_logprobs, atol=1e-5, rtol=0)
    other = world.generate(world.build_engine(model), [dataclasses.replace(request, seed=6)])[0]
    assert other.output_tokens != alone.output_tokens


def test_equal_requests_in_equal_order_reproduce_bit_for_bit(world):
    model = world.build_model()
    requests = [world.request(3 + i, seed=i, new=5 + i) for i in range(12)]
    first, second = (world.generate(world.build_engine(model), requests) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert (one.output_tokens, one.output_logprobs) == (two.output_tokens, two.output_logprobs)


@pytest.mark.sample(1)
@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_continuation_after_an_abort_equals_the_uninterrupted_stream(world, cut):
    model = world.build_model()
    request = world.request(10, seed=3, new=20)
    whole = world.generate(world.build_engine(model, eos=None), [request])[0]
    engine = world.build_engine(model, eos=None)

    async def main():
        task = asyncio.create_task(engine.agenerate(request))
        while engine.stats()["generated_tokens"] < cut:
            await asyncio.sleep(0)
        assert engine.abort([request.request_id]) == 1
        part = await task
        assert part.stop_reason is StopReason.ABORT
        done = len(part.output_tokens)
        rest = ModelRequest(
            input_ids=request.input_ids + part.output_tokens,
            gconfig=dataclasses.replace(request.gconfig, max_new_tokens=20 - done),
            seed=request.seed,
            sampled_before=done,
        )
        return part, await engine.agenerate(rest)

    part, rest = asyncio.run(main())
    assert 0 < len(part.output_tokens) < 20
    assert part.output_tokens + rest.output_tokens == whole.output_tokens
    joined = part.output_logprobs + rest.output_logprobs
    torch.testing.assert_close(joined, whole.output_logprobs, atol=1e-5, rtol=0)


def test_stop_tokens_are_impossible_before_min_new_tokens_and_the_rest_is_renormalised(world):
    model = world.build_model()
    stops = tuple(range(2, 20))  # most of the vocabulary: without the rule the first token would almost surely stop
    requests = [world.request(6, seed=i, min_new_tokens=5, stop_token_ids=stops) for i in range(20)]
    responses = world.generate(world.build_engine(model), requests)
    forbidden = [1, *stops]
    for response in responses:
        assert len(response.output_tokens) > 5
        assert not set(response.output_tokens[:5]) & set(forbidden)
        logprobs = world.logprobs(model, response)
        early = logprobs[:5].clone()
        early[:, forbidden] = float("-inf")
        expected = torch.cat((torch.log_softmax(early, -1), logprobs[5:]))
        chosen = torch.tensor(response.output_tokens)[:, None]
        recorded = torch.tensor(response.output_logprobs)
        torch.testing.assert_close(expected.gather(1, chosen)[:, 0], recorded, atol=1e-5, rtol=0)
        assert response.stop_reason is StopReason.STOP
    assert min(len(response.output_tokens) for response in responses) == 6


def test_min_new_tokens_counts_from_the_start_also_across_a_weight_update(world):
    model = world.build_model()
    stops = tuple(range(2, 20))
    engine = world.build_engine(model)

    async def main():
        task = asyncio.create_task(engine.agenerate(world.request(6, seed=1, min_new_tokens=8, stop_token_ids=stops)))
        while engine.stats()["generated_tokens"] < 6:
            await asyncio.sleep(0)
        engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=model.state_dict()))
        return await task

    response = asyncio.run(main())
    logprobs = world.logprobs(model, response)
    logprobs[:8, [1, *stops]] = float("-inf")
    expected = torch.cat((torch.log_softmax(logprobs[:8], -1), logprobs[8:]))
    chosen = torch.tensor(response.output_tokens)[:, None]
    recorded = torch.tensor(response.output_logprobs)
    assert len(recorded) > 8
    torch.testing.assert_close(expected.gather(1, chosen)[:, 0], recorded, atol=1e-5, rtol=0)


def test_logprobs_are_those_of_the_filtered_distribution(world):
    model = world.build_model()
    response = world.generate(world.build_engine(model, eos=None), [world.request(8, top_k=4, temperature=1.3)])[0]
    for token, recorded, row in zip(
        response.output_tokens, response.output_logprobs, world.logprobs(model, response, temperature=1.3), strict=True
    ):
        kept = row.topk(4)
        assert token in kept.indices
        assert abs(float(row[token] - kept.values.logsumexp(0)) - recorded) < TOLERANCE


def test_generation_stops_at_the_end_of_the_context(world):
    model = world.build_model(max_position_embeddings=40)
    engine = world.build_engine(model, eos=None)
    by_model, by_budget = world.generate(engine, [world.request(30, new=50), world.request(30, seed=1, new=4)])
    assert (len(by_model.output_tokens), by_model.stop_reason) == (10, StopReason.LENGTH)
    assert (len(by_budget.output_tokens), by_budget.stop_reason) == (4, StopReason.LENGTH)
    small = world.build_engine(model, eos=None, config=EmbeddedEngineConfig(max_seq_len=32))
    assert len(world.generate(small, [world.request(30, new=50)])[0].output_tokens) == 2


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ModelRequest(input_ids=[], gconfig=GenerationConfig()), "empty"),
        (
            ModelRequest(input_ids=[2] * 160, gconfig=GenerationConfig()),
            "160 tokens leaves no room in the context of 160",
        ),
        (ModelRequest(input_ids=[2, 32], gconfig=GenerationConfig()), "token id 32 is outside"),
        (ModelRequest(input_ids=[2, -3], gconfig=GenerationConfig()), "token id -3 is outside"),
        (ModelRequest(input_ids=[2, 3], gconfig=GenerationConfig(), sampled_before=3), "sampled_before is 3"),
    ],
)
def test_impossible_requests_are_data_faults_and_harm_nobody(world, request_, words):
    model = world.build_model()
    engine = world.build_engine(model)

    async def main():
        good = asyncio.create_task(engine.agenerate(world.request(5)))
        with pytest.raises(FaultError, match=words) as caught:
            await engine.agenerate(request_)
        assert caught.value.kind is FaultKind.DATA_INVALID
        return await good

    assert world.deviation(model, asyncio.run(main())) < TOLERANCE


def test_one_bfloat16_engine_beside_a_float32_trainer(world):
    model = world.build_model()
    engine = world.build_engine(model, eos=None, config=EmbeddedEngineConfig(dtype="bfloat16"))
    response = world.generate(engine, [world.request(9)])[0]
    assert next(model.parameters()).dtype is torch.float32
    # bfloat16 has 8 bits: close to the float32 reference, yet visibly not the same.
    assert 1e-5 < world.deviation(model, response) < 0.5
