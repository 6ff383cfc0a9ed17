"""Experts that servers report: how they are read, what is no record, and how the parts of a generation join."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from areal.api import EngineError, FaultError, GenerationConfig, ModelRequest, ServerInstance, StopReason
from areal.engine.checks import RequestLimits
from areal.engine.config import ServerEngineConfig
from areal.engine.server.adapter import Capabilities, Chunk
from areal.engine.server.errors import BadStatusError, BrokenTokensError, ConnectionFailedError
from areal.engine.server.fleet import Server
from areal.engine.server.generation import CallProgress, Generation
from areal.engine.server.requests import GenerationRunner
from areal.engine.server.routes import ServedRouters
from areal.engine.sglang.adapter import SGLangAdapter
from areal.engine.vllm.adapter import VLLMAdapter

ROUTERS = ServedRouters(num_layers=4, layers=(1, 3), num_experts=8, top_k=2)
MANY = ServedRouters(num_layers=1, layers=(0,), num_experts=300, top_k=3)
GOOD = np.array([[[0, 0], [5, 1], [0, 0], [7, 2]], [[0, 0], [0, 3], [0, 0], [1, 6]]], dtype=np.uint8)


@pytest.mark.parametrize("reported", [GOOD, GOOD.astype(np.int32).reshape(-1)], ids=["shaped", "in a row"])
def test_layers_without_a_router_are_left_out_and_numbers_take_a_byte(reported):
    routes = ROUTERS.decode(reported, where="here")
    assert routes.dtype == torch.uint8
    assert routes.tolist() == [[[5, 1], [7, 2]], [[0, 3], [1, 6]]]


def test_numbers_of_many_experts_take_two_bytes():
    routes = MANY.decode(np.array([299, 0, 256], dtype=np.uint16), where="here")
    assert routes.dtype == torch.int16
    assert routes.tolist() == [[[299, 0, 256]]]


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (GOOD[:, :3], r"uint8 \[2, 3, 2\], expected integers \[tokens, 4 layers, 2 experts\]"),
        (GOOD.astype(np.float32), "float32"),
        (GOOD.reshape(-1)[:-1], r"\[15\]"),
        (np.where(GOOD == 7, 8, GOOD), "experts 0 to 8, expected 0 to 7"),
        (np.where(GOOD == 7, -1, GOOD.astype(np.int32)), "experts -1 to 6"),
        (np.where(GOOD == 5, 1, GOOD), r"experts \[1, 1\] of layer 1 for one token"),
    ],
)
def test_what_cannot_be_what_routers_chose_is_refused(reported, said):
    with pytest.raises(BrokenTokensError, match=said):
        ROUTERS.decode(reported, where="here")


def npy(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


UNREADABLE = [b"no array", b"PK\x03\x04 no archive", b"PK\x05\x06", npy(b"{'descr': (((\n"), npy(b"\x00" * 8),
              npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (%d,)}" % 10**30),
              npy(b"{'descr': '<i4', 'fortran_order': False, 'shape': (-2,)}")]  # fmt: skip


@pytest.mark.parametrize("text", ["not base64!", *(base64.b64encode(content).decode() for content in UNREADABLE)])
def test_a_message_without_a_readable_array_is_refused(text):
    choice = {"token_ids": [], "finish_reason": "stop", "routed_experts": text}
    with pytest.raises(BrokenTokensError, match="NumPy"):
        VLLMAdapter()._native_chunk(choice, ROUTERS, "here")


def generation():
    request = ModelRequest(input_ids=[3, 4, 5], gconfig=GenerationConfig(max_new_tokens=9), seed=0)
    limits = RequestLimits(context=64, vocab_size=20, eos_token_id=None)
    return Generation(request, limits, 4, routers=ROUTERS)


def reported(first, count):
    """Experts of `count` tokens from token `first` on, which can be told from each other."""
    numbers = torch.arange(first, first + count)
    pair = torch.stack((numbers % 4, 4 + numbers // 4 % 4), dim=-1)
    return torch.stack((pair, pair), dim=1).to(torch.uint8)


def receive(one, tokens, routes, *, boundary=None, finish=""):
    progress = CallProgress(one.next_call(), 0)
    progress.add(Chunk(tokens=tokens, logprobs=[-1.0] * len(tokens), routes=routes, finish=finish), where="here")
    progress.boundary = boundary
    progress.settle_partial(one)


def test_a_call_reports_what_earlier_ones_have_not():
    one = generation()
    receive(one, [6, 7], reported(0, 4))
    assert one.next_call().routes_from == 4
    receive(one, [8, 9, 1], reported(4, 3))
    assert torch.equal(one.response(StopReason.LENGTH, server="a").routes, reported(0, 7))


def test_a_call_that_broke_without_a_report_leaves_its_tokens_to_the_next_one():
    one = generation()
    receive(one, [6, 7], None)
    assert one.next_call().routes_from == 0
    receive(one, [8], reported(0, 5))
    assert torch.equal(one.response(StopReason.LENGTH, server="a").routes, reported(0, 5))


def test_experts_of_tokens_that_are_not_kept_are_not_kept():
    one = generation()
    receive(one, [6, 7, 8, 9], reported(0, 6), boundary=2)
    assert torch.equal(one.routes[0], reported(0, 4))
    receive(one, [6, 7], reported(4, 2), boundary=0)
    assert one.num_routed == 4


def test_experts_of_other_tokens_than_asked_for_are_refused():
    one = generation()
    receive(one, [6, 7], reported(0, 4), finish="length")
    with pytest.raises(BrokenTokensError, match="experts of 7 tokens, expected 3: tokens 4 to 6"):
        receive(one, [8, 9, 1], reported(0, 7), finish="length")
    with pytest.raises(BrokenTokensError, match="experts of 4 tokens, expected 3"):
        receive(one, [8, 9, 1], reported(4, 4), finish="abort")
    with pytest.raises(BrokenTokensError, match="experts of 2 tokens, expected 3"):
        receive(one, [8, 9, 1], reported(4, 2), finish="stop")
    assert one.tokens == [6, 7]
    receive(one, [8, 9, 1], reported(4, 2), finish="abort")
    assert one.num_routed == 6


def test_tokens_of_which_nothing_was_reported_are_left_to_the_router():
    one = generation()
    receive(one, [6, 7], reported(0, 4))
    receive(one, [8, 9], None)
    routes = one.response(StopReason.ABORT, server="a").routes
    assert routes.shape == (6, 2, 2)
    assert torch.equal(routes[:4], reported(0, 4))
    assert (routes[4:] == 255).all()


class Recorded:
    """In the place of the client of an SGLang server: answers from lists; there is nothing to abort any more."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def events(self, url, path, body, *, patience):
        self.asked.append(path)
        for ids, rows, finish in self.answers.pop(0):
            experts = np.tile(np.array([0, 1], dtype="<i4"), rows * ROUTERS.num_layers)
            meta = {
                "output_token_logprobs": [[-1.0, token, None] for token in ids],
                "completion_tokens": len(ids),
                "weight_version": "0",
                "finish_reason": {"type": finish} if finish else None,
                "routed_experts": base64.b64encode(experts.tobytes()).decode(),
            }
            yield {"output_ids": ids, "meta_info": meta}

    async def post(self, url, path, body, *, timeout):
        self.asked.append(path)
        raise BadStatusError(400, path, "no such request")


@pytest.mark.parametrize(
    ("answer", "asked"),
    [([([7, 8], 4, "length")], ["/generate"]), ([([7, 8], 0, "")], ["/generate", "/abort_request"])],
    ids=["with the last token of its least length", "before that, and the server refuses to end it"],
)
def test_nothing_is_sampled_after_a_stop_string_and_the_answer_is_kept(answer, asked):
    gconfig = GenerationConfig(max_new_tokens=9, min_new_tokens=2 if answer[0][2] else 0, stop=("hi",))
    letters = SimpleNamespace(decode=lambda ids: "".join(chr(ord("a") + token) for token in ids))
    limits = RequestLimits(context=64, vocab_size=20, eos_token_id=1, tokenizer=letters)
    one = Generation(ModelRequest(input_ids=[3, 4, 5], gconfig=gconfig, seed=0), limits, 4, routers=ROUTERS)
    capabilities = Capabilities(version="", keeps_requests=False, details={"seeded": False, "open": set()})
    server = Server(ServerInstance(name="a", incarnation="", url="http://a"), capabilities, 0)
    client, progress = Recorded(answer), CallProgress(one.next_call(), 0)
    runner = GenerationRunner(
        SimpleNamespace(tally=Counter()), SGLangAdapter(), client, ServerEngineConfig(dtype="float32")
    )
    assert asyncio.run(runner._receive(one, progress, server)) is None
    progress.settle_partial(one)
    assert client.asked == asked
    assert (one.finished_by, one.tokens, one.num_routed) == (StopReason.STOP, [7, 8], answer[0][1])


class Broken(Recorded):
    """Loses the connection where its answers end, after it was asked to end the call."""

    async def events(self, url, path, body, *, patience):
        async for event in super().events(url, path, body, patience=patience):
            yield event
        raise ConnectionFailedError("the stream ended without its end mark")

    async def post(self, url, path, body, *, timeout):
        self.asked.append(path)
        return {}


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ([([7, 8], 0, "")], ""),
        ([([7, 9], 0, "")], "the stream ended"),
        ([([7, 8], 0, ""), ([7, 8], 9, "stop")], "sent experts of 9 tokens"),
    ],
    ids=["after a stop string", "before", "with experts of other tokens after it"],
)
def test_a_stream_that_breaks_after_a_stop_string_has_given_its_answer(answer, failed):
    letters = SimpleNamespace(decode=lambda ids: "".join(chr(ord("a") + token) for token in ids))
    limits = RequestLimits(context=64, vocab_size=20, eos_token_id=1, tokenizer=letters)
    gconfig = GenerationConfig(max_new_tokens=3, stop=("hi",))
    one = Generation(ModelRequest(input_ids=[3, 4, 5], gconfig=gconfig, seed=0), limits, 4, routers=ROUTERS)
    capabilities = Capabilities(version="", keeps_requests=False, details={"seeded": False, "open": set()})
    server = Server(ServerInstance(name="a", incarnation="", url="http://a"), capabilities, 0)
    broken = []

    async def acquire(*_, **__):
        return server

    members = SimpleNamespace(
        tally=Counter(), version=0, is_hopeless=None, fleet=SimpleNamespace(acquire=acquire, release=lambda *_: None),
        server_failed=lambda *about: broken.append(about),
    )  # fmt: skip
    config = ServerEngineConfig(dtype="float32", max_attempts=1)
    runner = GenerationRunner(members, SGLangAdapter(), Broken(answer), config)
    if failed:
        with pytest.raises(FaultError, match=failed):
            asyncio.run(runner.run(one))
        assert len(broken) == members.tally["failed_calls"] == 1
        return
    response = asyncio.run(runner.run(one))
    assert (response.stop_reason, response.output_tokens) == (StopReason.STOP, [7, 8])
    assert "failed_calls" not in response.metadata
    assert not broken
    assert members.tally["failed_calls"] == members.tally["salvaged_tokens"] == 0


def test_a_server_that_does_not_report_them_is_refused(world):
    world.start(1, restarts=0, ready=False, routers=ROUTERS)
    with pytest.raises(EngineError, match="--enable-return-routed-experts"):
        world.engine.wait_ready(timeout=60)
