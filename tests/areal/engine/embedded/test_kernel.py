"""The compiled kernel computes what the modules compute, and the same bits however rows come together."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import threading
import time
import weakref
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from areal.api import GenerationConfig, ModelRequest, WeightUpdateMeta
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded import batch, kernel_library, native, native_layout
from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.native import ROW, NativeForward
from areal.engine.embedded.native_layout import NativeModel
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import ParallelBlock, PostNormBlock, PreNormBlock, SandwichBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.mlp import MLP, GatedMLP
from areal.models.blocks.norms import LayerNorm, RMSNorm
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize
from areal.utils.computing import training

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH, LENGTH = 37, 44, 6, 2, 32, 50, 160
PLAIN = Rotary(RotaryArgs(), HEAD_DIM)
YARN = RotaryArgs(rotary_type="yarn", parameters={"factor": 4.0, "original_max_position_embeddings": 40})


def block(kind, attention, mlp, *, norm=RMSNorm, **options):
    names = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}
    optional = {PreNormBlock: {"input_layernorm", "post_attention_layernorm"}, ParallelBlock: {"input_layernorm"}}
    used = optional.get(
        kind, names - ({"input_layernorm", "pre_feedforward_layernorm"} if kind is PostNormBlock else set())
    )
    return kind(self_attn=attention, mlp=mlp, **{name: norm(HIDDEN, 1e-6) for name in used}, **options)


def build(
    *,
    kind=PreNormBlock,
    rotary=PLAIN,
    attention=dict,
    mlp=GatedMLP,
    wraps=None,
    sizes=None,
    tie=True,
    **options,
):
    """A model of two layers. attention: gives the options of a layer; wraps: makes its block of both parts."""
    changes = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM} | (sizes or {})
    args = SimpleNamespace(
        **{"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": 2, "max_position_embeddings": LENGTH},
        **changes,
        tie_word_embeddings=tie,
    )
    parts = ((SelfAttention(layer, args, **attention()), mlp(HIDDEN, WIDTH)) for layer in range(2))
    layers = [(wraps or partial(block, kind))(*part) for part in parts]
    model = DecoderModel(args, layers=layers, norm=RMSNorm(HIDDEN, 1e-6), rotary=rotary, **options)
    # Far from uniform predictions, so that a wrong mask, position or weight shows; norms and biases are not 1 and 0.
    initialize(model, std=0.2, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def head_norms():
    return {"query_norm": RMSNorm(HEAD_DIM, 1e-3), "key_norm": RMSNorm(HEAD_DIM, 1e-3, offset=1.0)}


def wide_norms():
    return {
        "query_norm": RMSNorm(HEADS * HEAD_DIM, 1e-3),
        "key_norm": RMSNorm(KV_HEADS * HEAD_DIM, 1e-3),
        "full_width_norms": True,
    }


COMPUTED = {
    "plain": {},
    "head of its own, with a bias": {"tie": False, "head_bias": True},
    "biases": {
        "attention": lambda: {"qkv_bias": True, "output_bias": True},
        "mlp": partial(GatedMLP, bias=True),
    },
    "norms of heads": {"attention": head_norms},
    "norms of all heads together": {"attention": wide_norms},
    "window": {"attention": lambda: {"window": 7}},
    "chunks": {"attention": lambda: {"chunk": 6}},
    "softcap, sinks, scale": {"attention": lambda: {"softcap": 3.0, "sinks": True, "scale": 0.4}},
    "two rotations, partial and interleaved": {
        "rotary": (Rotary(RotaryArgs(), 16), Rotary(RotaryArgs(theta=50.0), HEAD_DIM, interleaved=True))
    },
    "stretched positions": {"rotary": Rotary(YARN, HEAD_DIM)},
    "no positions": {"rotary": None},
    "one key head": {"sizes": {"num_kv_heads": 1}},
    "many heads of the size of two panels": {
        "sizes": {"num_heads": 40, "num_kv_heads": 1, "head_dim": 80},
        "rotary": None,
    },
    "post-norm blocks": {"kind": PostNormBlock},
    "sandwich blocks": {
        "wraps": lambda *parts: block(SandwichBlock, *parts, residual_multiplier=0.7, output_scale=True),
        "embedding_multiplier": 3.0,
    },
    "layer norms": {"wraps": partial(block, PreNormBlock, norm=LayerNorm)},
    "multipliers and a cap of logits": {"logit_multiplier": 0.5, "logit_softcap": 4.0},
    **{
        f"{activation}, {kind.__name__}": {"mlp": partial(kind, activation=activation)}
        for activation, kind in (("gelu", MLP), ("gelu_new", GatedMLP), ("relu", MLP), ("quick_gelu", GatedMLP))
    },
}
LEFT_TO_TORCH = {
    "gate_proj of SelfAttention": {"attention": lambda: {"gate": "headwise"}},
    "alibi of SelfAttention": {"attention": lambda: {"alibi": 0.7}, "rotary": None},
    "clip of SelfAttention": {"attention": lambda: {"clip": 0.9}},
    "clamp of GatedMLP": {"mlp": partial(GatedMLP, clamp=1.0)},
    "activation squared_relu": {"mlp": partial(MLP, activation="relu2")},
    "heads of 24": {"sizes": {"head_dim": 24}, "rotary": None},
    "values of another kind": {"attention": lambda: {"value_dim": 16}},
    "is a ParallelBlock": {"kind": ParallelBlock},
}


def engine_of(world, model, *, kernel="auto", rows=4):
    config = EmbeddedEngineConfig(max_batch_size=rows, kernel=kernel)
    return world.build_engine(model, eos=None, config=config)


def requests_of(world):
    # More than there are slots: late joiners and compaction.
    lone = [world.request(length, seed=seed, new=20) for seed, length in enumerate((1, 2, 7, 30, 3, 100, 5, 5))]
    # A group, one of which comes while another runs: its prompt is copied, or its last token decoded.
    return lone + [world.request(21, prompt_seed=3, seed=seed, new=9 + seed) for seed in range(6)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", COMPUTED)
def test_the_kernel_equals_a_full_forward_and_samples_what_torch_does(world, caplog, name):
    caplog.set_level(logging.INFO)
    model = build(**COMPUTED[name])
    found = world.generate(engine_of(world, model), requests_of(world))
    assert "tokens are computed by the compiled kernel" in caplog.text
    for response in found:
        assert world.deviation(model, response) < 1e-5
    by_torch = world.generate(engine_of(world, model, kernel="torch"), requests_of(world))
    assert [each.output_tokens for each in found] == [each.output_tokens for each in by_torch]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_sequences_are_compared_as_well(length):
    library = kernel_library.load_kernel()
    with torch.no_grad():
        forward = NativeForward(library, build(), max_length=length)
    forward.close()
    assert forward._context == length


def test_no_compiler_is_waited_for_by_models_that_the_kernel_does_not_compute(world, monkeypatch):
    def fail():
        raise AssertionError("asked for the kernel")

    monkeypatch.setattr(batch, "kernel_in_background", fail)
    assert world.generate(engine_of(world, build(kind=ParallelBlock)), [world.request(9)])
    assert world.generate(engine_of(world, build().bfloat16()), [world.request(9)])


def test_the_loop_goes_on_while_the_kernel_is_built(world, monkeypatch):
    building = Future()
    monkeypatch.setattr(batch, "kernel_in_background", lambda: building)

    async def generate(engine):
        task = asyncio.create_task(engine.agenerate(world.request(9, new=3)))
        await asyncio.sleep(0.05)
        assert engine.stats()["generated_tokens"] == 0
        engine.pause()
        engine.resume()
        building.set_result(kernel_library.load_kernel())
        return await task

    assert len(asyncio.run(generate(engine_of(world, build()))).output_tokens) == 3


@pytest.mark.parametrize("problem", [MemoryError("no room"), ZeroDivisionError("in a check")])
def test_whatever_stops_the_kernel_no_request_fails(world, monkeypatch, caplog, problem):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(batch, "NativeForward", fail)
    model = build()
    assert world.deviation(model, world.generate(engine_of(world, model), [world.request(9)])[0]) < 1e-5
    assert str(problem) in caplog.text


@pytest.fixture
def two_parts():
    """A forward, and what it is called with for sequences of one token each, as many as two threads share."""
    with torch.no_grad():
        forward = NativeForward(kernel_library.load_kernel(), build(), max_length=LENGTH)
    count, before = 16, torch.get_num_threads()
    rows = np.zeros(count, dtype=ROW)
    rows["slot"] = rows["logits"] = np.arange(count)
    rows["own_count"] = 1
    caches = [KVCache(max_slots=count, max_length=LENGTH) for _ in range(2)]
    for cache in caches:
        cache.reserve(count, 1)
    torch.set_num_threads(2)
    yield forward, (rows, count, *caches)
    torch.set_num_threads(before)
    forward.close()


def test_an_interrupt_waits_for_threads_that_write_to_caches(two_parts):
    forward, arguments = two_parts
    ended = []

    def slow(*_):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.1)
        ended.append(1)

    forward._library = SimpleNamespace(scratch_bytes=forward._library.scratch_bytes, forward=slow)
    with pytest.raises(KeyboardInterrupt):
        forward.logits(*arguments)
    assert ended == [1]


def test_a_quarter_of_the_threads_computes_tokens_while_training_does(two_parts, monkeypatch):
    forward, arguments = two_parts
    wanted, divide, threads = forward.logits(*arguments), native._parts, []
    monkeypatch.setattr(native, "_parts", lambda rows, number: threads.append(number) or divide(rows, number))
    with training():
        assert torch.equal(forward.logits(*arguments), wanted)
    assert torch.equal(forward.logits(*arguments), wanted)
    assert threads == [1, 2]


def test_a_process_that_was_forked_computes_with_threads_of_its_own(two_parts):
    forward, arguments = two_parts
    wanted = forward.logits(*arguments)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if torch.equal(forward.logits(*arguments), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_update_drops_the_copy_before_it_makes_a_new_one(two_parts, monkeypatch):
    forward, _ = two_parts
    old = weakref.ref(forward._native._tensors[-1])
    seen, pack = [], NativeModel._matrix
    monkeypatch.setattr(NativeModel, "_matrix", lambda self, parts: seen.append(old()) or pack(self, parts))
    forward.refresh()
    assert set(seen) == {None}


def test_an_update_that_the_kernel_does_not_take_is_still_an_update(world, monkeypatch, caplog):
    model, other = build(), build()
    initialize(other, std=0.3, seed=9)
    engine = engine_of(world, model)
    world.generate(engine, [world.request(9)])

    def fail(_):
        raise MemoryError("no room")

    monkeypatch.setattr(NativeForward, "refresh", fail)
    engine.update_weights(WeightUpdateMeta(version=1, kind="memory", state_dict=dict(other.state_dict())))
    assert "no room" in caplog.text
    assert engine.version == 1
    assert world.deviation(other, world.generate(engine, [world.request(9)])[0]) < 1e-5


def test_a_copy_that_does_not_fit_is_not_made(world, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(native_layout, "free_memory", lambda: 10_000)
    world.generate(engine_of(world, build()), [world.request(9)])
    assert "a copy of the weights needs" in caplog.text


@pytest.mark.sample(4)
@pytest.mark.parametrize("reason", LEFT_TO_TORCH)
def test_what_the_kernel_does_not_know_is_left_to_torch(world, caplog, reason):
    caplog.set_level(logging.INFO)
    model = build(**LEFT_TO_TORCH[reason])
    response = world.generate(engine_of(world, model), [world.request(9)])[0]
    assert "tokens are computed by torch" in caplog.text
    assert reason in caplog.text
    assert world.deviation(model, response) < 1e-5


def test_a_layer_that_is_not_what_it_seems_is_noticed(world, caplog):
    caplog.set_level(logging.INFO)
    model = build()
    attention = model.layers[1].self_attn
    original = attention._heads
    attention._heads = lambda projected, norm, rotation: original(projected * 1.01, norm, rotation)
    library = kernel_library.load_kernel()
    with torch.no_grad(), pytest.raises(Exception, match=r"logits of the kernel differ .* by \d"):
        NativeForward(library, model, max_length=LENGTH)


def test_a_token_has_the_same_bits_alone_in_company_and_after_an_interruption(world):
    model = build(attention=head_norms)
    request, others = (
        world.request(40, seed=5, new=40),
        [world.request(40, prompt_seed=5, seed=i, new=25) for i in range(11)],
    )
    others += [world.request(9 * i + 1, seed=i, new=33) for i in range(8)]
    alone = world.generate(engine_of(world, model, rows=1), [request])[0]

    async def interrupted(engine):
        tasks = [asyncio.create_task(engine.agenerate(each)) for each in (*others[:7], request, *others[7:])]
        while engine.stats()["generated_tokens"] < 60:
            await asyncio.sleep(0)
        # The same weights once more: what is cached is computed anew, as new prompts.
        engine.update_weights(WeightUpdateMeta(version=1, kind="memory", state_dict=dict(model.state_dict())))
        return (await asyncio.gather(*tasks))[7]

    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = asyncio.run(interrupted(engine_of(world, model, rows=32)))
            assert found.output_tokens == alone.output_tokens
            assert found.output_logprobs == alone.output_logprobs
            assert set(found.output_versions) == {0, 1}
    finally:
        torch.set_num_threads(before)


def test_updates_change_what_the_kernel_computes_with(world):
    model, other = build(), build()
    initialize(other, std=0.3, seed=9)
    engine = engine_of(world, model)
    world.generate(engine, [world.request(9)])
    engine.update_weights(WeightUpdateMeta(version=1, kind="memory", state_dict=dict(other.state_dict())))
    response = world.generate(engine, [world.request(9)])[0]
    assert world.deviation(other, response) < 1e-5
    assert world.deviation(model, response) > 0.01


def test_weights_in_bfloat16_are_computed_in_float32_when_asked(world, caplog):
    caplog.set_level(logging.INFO)
    model, other = build().to(torch.bfloat16), build()
    initialize(other, std=0.3, seed=9)
    other.to(torch.bfloat16)
    config = EmbeddedEngineConfig(max_batch_size=4, dtype="float32")
    engine = world.build_engine(model, eos=None, config=config)
    first = world.generate(engine, [world.request(9)])[0]
    engine.update_weights(WeightUpdateMeta(version=1, kind="memory", state_dict=dict(other.state_dict())))
    second = world.generate(engine, [world.request(9)])[0]
    assert "tokens are computed by the compiled kernel" in caplog.text
    for rounded, response in ((model, first), (other, second)):
        assert world.deviation(rounded.float(), response) < 1e-5


def test_shared_weights_are_read_at_each_update(world):
    model = build()
    config = EmbeddedEngineConfig(max_batch_size=4)
    engine = world.build_engine(model, eos=None, config=config, share_weights=True)
    world.generate(engine, [world.request(9)])
    engine.pause()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    engine.update_weights(WeightUpdateMeta(version=1, kind="memory", state_dict=dict(model.state_dict())))
    engine.resume()
    assert world.deviation(model, world.generate(engine, [world.request(9)])[0]) < 1e-5


def test_sampling_settings_and_stops_are_those_of_each_row(world):
    model = build()
    settings = [{"temperature": 0.5}, {"greedy": True}, {"top_k": 3}, {"top_p": 0.7}, {"stop_token_ids": (4, 5)}]
    settings += [{"min_new_tokens": 9, "stop_token_ids": (4, 5, 6, 7)}]
    requests = [
        ModelRequest(input_ids=[3, 9, 2 + i], gconfig=GenerationConfig(max_new_tokens=12, **options), seed=i)
        for i, options in enumerate(settings * 3)
    ]
    by_kernel, by_torch = (
        world.generate(engine_of(world, model, kernel=kernel, rows=8), requests) for kernel in ("auto", "torch")
    )
    for found, wanted in zip(by_kernel, by_torch, strict=True):
        assert (found.output_tokens, found.stop_reason) == (wanted.output_tokens, wanted.stop_reason)
        assert torch.allclose(torch.tensor(found.output_logprobs), torch.tensor(wanted.output_logprobs), atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-mno-avx",), ("-O0",)])
def test_processors_with_narrower_vectors_compute_the_same(world, monkeypatch, tmp_path, flags):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_library, "_FLAGS", (*kernel_library._FLAGS, *flags))
    library = kernel_library.load_kernel()
    assert not isinstance(library, str), library
    for name in ("plain", "window", "many heads of the size of two panels", "sandwich blocks"):
        # Its construction compares logits.
        with torch.no_grad():
            NativeForward(library, build(**COMPUTED[name]), max_length=LENGTH).close()
