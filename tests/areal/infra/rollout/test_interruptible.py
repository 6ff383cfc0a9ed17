"""One generation as a workflow sees it: seeded, continued after cuts, checked against the engine's contract."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from areal.api import (
    EngineError,
    FaultError,
    FaultKind,
    GenerationConfig,
    ModelRequest,
    ModelResponse,
    StopReason,
    WeightUpdateMeta,
)
from areal.infra.rollout.episode import EpisodeEngine, EpisodeProgress, derive_seed

REQUEST = ModelRequest(input_ids=[5, 9], gconfig=GenerationConfig(max_new_tokens=8, min_new_tokens=3))


class Scripted:
    """Answers with prepared responses, and keeps what it was asked."""

    def __init__(self, *answers, version=7):
        self.answers, self.version, self.requests, self.aborted = list(answers), version, [], []

    async def agenerate(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return await answer()
        return answer

    def abort(self, request_ids=None):
        self.aborted += request_ids
        return 1

    def stats(self):
        return {"generated_tokens": 3.0}


def response(tokens, versions=None, logprobs=None, reason=StopReason.STOP):
    return ModelResponse(
        input_tokens=[],
        output_tokens=tokens,
        output_logprobs=[-0.5] * len(tokens) if logprobs is None else logprobs,
        output_versions=[4] * len(tokens) if versions is None else versions,
        stop_reason=reason,
    )


def episode_engine(scripted, oldest=4):
    return EpisodeEngine(scripted, seed_parts=("train", 1, 2, 3, 0), oldest_version=oldest, progress=EpisodeProgress())


async def test_a_cut_generation_continues_from_its_tokens_until_it_is_complete():
    cut = StopReason.ABORT
    scripted = Scripted(response([1, 2], reason=cut), response([], reason=cut), response([3], [6]), version=7)
    result = await episode_engine(scripted).agenerate(REQUEST)
    assert (result.input_tokens, result.output_tokens) == ([5, 9], [1, 2, 3])
    assert (result.output_versions, result.stop_reason) == ([4, 4, 6], StopReason.STOP)
    assert result.metadata == {"interruptions": 2}
    first, second, third = scripted.requests
    assert [request.input_ids for request in scripted.requests] == [[5, 9], [5, 9, 1, 2], [5, 9, 1, 2]]
    assert [request.sampled_before for request in scripted.requests] == [0, 2, 2]
    assert [request.gconfig.max_new_tokens for request in scripted.requests] == [8, 6, 6]
    assert [request.gconfig.min_new_tokens for request in scripted.requests] == [3, 1, 1]
    assert first.seed == second.seed == third.seed == derive_seed("train", 1, 2, 3, 0, 0)
    assert len({request.request_id for request in scripted.requests}) == 3


async def test_a_generation_cut_exactly_at_its_budget_is_truncated_not_continued():
    scripted = Scripted(response(list(range(8)), reason=StopReason.ABORT))
    result = await episode_engine(scripted).agenerate(REQUEST)
    assert result.stop_reason is StopReason.LENGTH
    assert len(scripted.requests) == 1


async def test_every_call_of_an_episode_has_its_own_stable_seed():
    seeds = []
    for _ in range(2):
        scripted = Scripted(response([1]), response([1]))
        engine = episode_engine(scripted)
        await engine.agenerate(REQUEST)
        await engine.agenerate(replace(REQUEST, seed=99))
        seeds.append([request.seed for request in scripted.requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2
    assert all(0 <= seed < 2**63 for seed in seeds[0])


async def test_requests_that_name_their_seed_get_it_in_any_order():
    """Of requests in parallel, timing decides which one is the n-th."""

    async def seeds(names):
        scripted = Scripted(*[response([1])] * len(names))
        engine = episode_engine(scripted)
        for name in names:
            await engine.agenerate(replace(REQUEST, metadata={"seed_key": name}))
        return {request.metadata["seed_key"]: request.seed for request in scripted.requests}

    found = await seeds(["a-0", "b-0", "a-1"])
    assert found == await seeds(["b-0", "a-1", "a-0"])
    assert len(set(found.values())) == 3


def test_seeds_are_the_same_on_every_machine():
    assert derive_seed("train", 1, 0, 0, 0, 0) == 2817207301565245887
    assert derive_seed("train", 1, 11) != derive_seed("train", 11, 1) != derive_seed("train", 111)


def unchecked(tokens, logprobs, versions):
    """A backend with its own response type may not even keep equal lengths."""
    broken = object.__new__(ModelResponse)
    values = response([])
    for name in ("input_tokens", "stop_reason", "latency_seconds", "metadata"):
        object.__setattr__(broken, name, getattr(values, name))
    for name, value in (("output_tokens", tokens), ("output_logprobs", logprobs), ("output_versions", versions)):
        object.__setattr__(broken, name, value)
    return broken


@pytest.mark.fault(
    row=8,
    injected="answers with a missing log-probability, NaN, infinity, None, one above 0, versions that go back or were "
    "never published, no tokens, too many tokens",
    seen="a generation_failed fault with the reason; nothing of it is trained",
)
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (unchecked([1, 2], [-0.5], [4, 4]), "2 tokens, 1 log-probabilities and 2 versions"),
        (response([1], logprobs=[math.nan]), "log-probability nan of token 0"),
        (response([1, 2], logprobs=[-0.1, -math.inf]), "log-probability -inf of token 1"),
        (response([1], logprobs=[0.01]), "log-probability 0.01 of token 0"),
        (response([1], logprobs=[None]), "log-probability None of token 0"),
        (response([1], versions=[3]), "versions 3 .. 3, expected ascending from at least 4 to at most 7"),
        (response([1], versions=[8]), "versions 8 .. 8"),
        (response([1, 2, 3], versions=[4, 6, 5]), "expected ascending"),
        (response([]), "no tokens although it stopped"),
        (response(list(range(9))), "9 tokens for a budget of 8"),
        (OSError("connection reset"), "OSError: connection reset"),
        (EngineError("closed"), "EngineError: closed"),
    ],
)
async def test_a_broken_contract_is_a_failed_generation(broken, message):
    with pytest.raises(FaultError) as caught:
        await episode_engine(Scripted(broken)).agenerate(REQUEST)
    assert caught.value.kind is FaultKind.GENERATION_FAILED
    assert message in caught.value.message


async def test_rounding_just_above_zero_is_accepted():
    assert (await episode_engine(Scripted(response([1], logprobs=[5e-5]))).agenerate(REQUEST)).output_tokens == [1]


async def test_a_typed_fault_of_the_engine_keeps_its_kind():
    with pytest.raises(FaultError) as caught:
        await episode_engine(Scripted(FaultError(FaultKind.DATA_INVALID, "prompt too long"))).agenerate(REQUEST)
    assert caught.value.kind is FaultKind.DATA_INVALID


async def test_an_engine_that_only_ever_cuts_is_given_up():
    scripted = Scripted(*[response([], reason=StopReason.ABORT)] * 500)
    with pytest.raises(FaultError, match="times in a row without a new token"):
        await episode_engine(scripted).agenerate(REQUEST)


async def test_a_cancelled_episode_ends_its_request_in_the_engine():
    scripted = Scripted(lambda: asyncio.sleep(60))
    task = asyncio.ensure_future(episode_engine(scripted).agenerate(REQUEST))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scripted.aborted == [REQUEST.request_id]


def test_a_workflow_cannot_reach_the_controls_of_the_shared_engine():
    engine = episode_engine(Scripted())
    meta = WeightUpdateMeta(kind="memory", version=9, state_dict={})
    for call in (engine.pause, engine.resume, engine.abort, engine.close, lambda: engine.update_weights(meta)):
        with pytest.raises(EngineError, match="shared by all episodes"):
            call()
    assert (engine.version, engine.stats()) == (7, {"generated_tokens": 3.0})
