"""Experts that servers report: how they are read, what is no record, and how the parts of a generation join."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

from areal.api import EngineError, GenerationConfig, ModelRequest, StopReason
from areal.engine.checks import RequestLimits
from areal.engine.server.adapter import Chunk
from areal.engine.server.errors import BrokenTokensError
from areal.engine.server.generation import CallProgress, Generation
from areal.engine.server.routes import ServedRouters
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


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"no array").decode()])
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


def receive(one, tokens, routes, *, boundary=None):
    progress = CallProgress(one.next_call(), 0)
    progress.add(Chunk(tokens=tokens, logprobs=[-1.0] * len(tokens), routes=routes))
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
    receive(one, [6, 7], reported(4, 3), boundary=0)
    assert one.num_routed == 4


def test_tokens_of_which_nothing_was_reported_are_left_to_the_router():
    one = generation()
    receive(one, [6, 7], reported(0, 4))
    receive(one, [8, 9], None)
    routes = one.response(StopReason.ABORT, server="a").routes
    assert routes.shape == (6, 2, 2)
    assert torch.equal(routes[:4], reported(0, 4))
    assert (routes[4:] == 255).all()


def test_a_server_that_does_not_report_them_is_refused(world):
    world.start(1, restarts=0, ready=False, routers=ROUTERS)
    with pytest.raises(EngineError, match="--enable-return-routed-experts"):
        world.engine.wait_ready(timeout=5)
