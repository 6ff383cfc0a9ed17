"""Layers with states generate what training computes: at every split, for groups, across slots and weight updates."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from operator import itemgetter
from types import SimpleNamespace

import pytest
import torch

from areal.api import OF_HEADS, DecayedSum, DeltaRule, SelectiveScan, WeightUpdateMeta
from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.states import StateStore, StepBackend
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.rotary import Rotary
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize

CPU = torch.device("cpu")
HIDDEN = 32
ARGS = SimpleNamespace(
    vocab_size=32,
    hidden_size=HIDDEN,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=160,
    tie_word_embeddings=True,
)
DELTA = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 8, "value_dim": 6, "kernel_size": 4, "norm_eps": 1e-6}
MIXERS = {
    "short convolution": lambda layer: ShortConvolution(layer, ARGS, kernel_size=3, bias=True),
    "delta": lambda layer: GatedDelta(layer, ARGS, **DELTA, chunk=16),
    "delta by channel": lambda layer: GatedDelta(layer, ARGS, **DELTA, by_channel=True, decay_rank=8, gate="sigmoid"),
    "mamba-1": lambda layer: Mamba1(
        layer, ARGS, inner_size=48, state_size=6, step_rank=3, kernel_size=4, norm_eps=1e-6, chunk=16
    ),
    "mamba": lambda layer: Mamba2(
        layer, ARGS, num_heads=4, head_dim=8, num_groups=2, state_size=8, kernel_size=4, norm_eps=1e-6, chunk=16
    ),
    "lightning": lambda layer: LightningAttention(
        layer, ARGS, num_heads=4, head_dim=8, num_layers=3, table_size=9, norm_eps=1e-6, chunk=16
    ),
    "rg-lru": lambda layer: RGLRU(
        layer, ARGS, width=40, num_blocks=4, kernel_size=4, activation="gelu_pytorch_tanh", chunk=16
    ),
    "mamba beside attention": lambda layer: SelfAttention(layer, ARGS),
}


def mixers(*default):
    """All of them, the others in exhaustive runs."""
    return [name if name in default else pytest.param(name, marks=pytest.mark.exhaustive) for name in MIXERS]


def model_of(name, seed=0, *, std=0.3, dtype=torch.float64):
    """Two layers of the mixer around one of attention, far from uniform predictions; in float64 only the meaning is
    judged, not the rounding, which such large weights make visible."""
    stack = MIXERS[name](0), SelfAttention(1, ARGS), MIXERS[name](2)
    layers = [
        PreNormBlock(
            input_layernorm=RMSNorm(HIDDEN, 1e-6),
            self_attn=mixer,
            post_attention_layernorm=RMSNorm(HIDDEN, 1e-6),
            mlp=GatedMLP(HIDDEN, 48),
            **({"beside": MIXERS["mamba"](layer)} if name == "mamba beside attention" else {}),
        )
        for layer, mixer in enumerate(stack)
    ]
    rotary = Rotary(RotaryArgs(), 8)
    model = DecoderModel(ARGS, layers=layers, norm=RMSNorm(HIDDEN, 1e-6), rotary=(None, rotary, None))
    initialize(model, std=std, seed=seed)
    return model.to(dtype)


def worst(world, model, responses):
    return max(world.deviation(model, response) for response in responses)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", mixers("delta by channel", "mamba", "mamba-1"))
@pytest.mark.parametrize(("std", "dtype", "limit"), [(0.3, torch.float64, 1e-6), (0.15, torch.float32, 1e-5)])
def test_step_by_step_equals_a_full_forward(world, name, std, dtype, limit):
    model = model_of(name, std=std, dtype=dtype)
    engine = world.build_engine(model, eos=None, batch=4)  # fewer slots than requests: late joiners and compaction
    lengths = (1, 2, 7, 30, 3, 64, 5, 5)
    requests = [world.request(length, seed=seed, new=20) for seed, length in enumerate(lengths)]
    requests += [world.request(12, prompt_seed=3, seed=seed, new=9 + seed) for seed in range(6)]
    assert worst(world, model, world.generate(engine, requests)) < limit


@pytest.mark.parametrize("name", mixers("delta"))
def test_a_group_that_does_not_fit_at_once_continues_the_state_kept_at_the_end_of_its_prompt(world, name):
    model = model_of(name)
    engine = world.build_engine(model, eos=None, batch=4)
    group = [world.request(25, prompt_seed=1, seed=seed, new=40) for seed in range(4)]
    others = [world.request(20, prompt_seed=2, seed=seed, new=3 + seed) for seed in range(3)]
    responses = world.generate(engine, [group[0], *others, *group[1:]])
    assert engine.stats()["prefill_tokens"] == 25 + 20
    assert engine.stats()["shared_tokens"] == 3 * 25 + 2 * 20
    assert worst(world, model, responses) < 1e-6
    assert len({tuple(response.output_tokens) for response in responses}) == 7


def test_a_latecomer_whose_prompt_was_not_kept_is_computed_anew(world):
    model = model_of("delta")
    engine = world.build_engine(model, eos=None)

    async def main():
        first = asyncio.create_task(engine.agenerate(world.request(9, prompt_seed=1, seed=1, new=60)))
        while engine.stats()["generated_tokens"] < 10:
            await asyncio.sleep(0)
        late = await engine.agenerate(world.request(9, prompt_seed=1, seed=2, new=10))
        assert not first.done()
        return await first, late

    responses = asyncio.run(main())
    assert engine.stats()["prefill_tokens"] == 18
    assert worst(world, model, responses) < 1e-6


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", mixers("short convolution", "delta"))
def test_after_a_weight_update_states_are_those_of_the_new_weights(world, name):
    model, newer = model_of(name), model_of(name, seed=1)
    engine = world.build_engine(model, eos=None, batch=3)
    requests = [world.request(length, seed=length, new=30) for length in (4, 17, 9)]
    requests += [world.request(11, prompt_seed=5, seed=seed, new=30) for seed in range(2)]

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(request)) for request in requests]
        while engine.stats()["generated_tokens"] < 30:
            await asyncio.sleep(0)
        engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=newer.state_dict()))
        return await asyncio.gather(*tasks)

    responses = asyncio.run(main())
    changes = [response.output_versions.count(0) for response in responses]
    assert any(0 < change < 30 for change in changes)
    for response, change in zip(responses, changes, strict=True):
        if change:
            assert world.deviation(model, response, last=change) < 1e-6
        assert world.deviation(newer, response, first=change) < 1e-6


def test_aborted_rows_leave_others_their_states(world):
    model = model_of("mamba")
    engine = world.build_engine(model, eos=None, batch=4)
    requests = [world.request(length, seed=length, new=40) for length in (6, 13, 20, 3)]

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(request)) for request in requests]
        while engine.stats()["generated_tokens"] < 40:
            await asyncio.sleep(0)
        engine.abort([requests[0].request_id])
        return await asyncio.gather(*tasks)

    responses = asyncio.run(main())
    assert len(responses[0].output_tokens) < 40
    assert worst(world, model, responses) < 1e-6


def rule_of(kind, length):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(length, *shape, generator=generator, dtype=torch.float64)

    if kind == "selective":
        vectors = {name: draw(1, 3) for name in ("query", "key")}
        rates = -draw(3)[:4].square()
        return SelectiveScan(**vectors, value=draw(4), step=draw(4).square(), rates=rates, chunk=4)
    decay = -draw(4, *((3,) if kind == "delta by channel" else ())).square()
    key = torch.nn.functional.normalize(draw(2, 3), dim=-1)
    if kind == "sum":
        return DecayedSum(query=draw(2, 3), key=key, value=draw(4, 2), log_decay=decay, chunk=4)
    rate = draw(4).sigmoid()
    return DeltaRule(query=draw(2, 3), key=key, value=draw(4, 2), log_decay=decay, rate=rate, chunk=4)


def part_of(rule, index):
    names = [f.name for f in fields(rule) if f.name != "chunk" and f.metadata != OF_HEADS]
    return replace(rule, **{name: index(getattr(rule, name)) for name in names})


@pytest.mark.parametrize("kind", ["delta", "delta by channel", "sum", "selective"])
def test_decoding_equals_training_at_every_split(kind):
    length = 11
    rule, inputs = rule_of(kind, length), torch.randn(length, 5, generator=torch.Generator().manual_seed(1))
    inputs, weight = inputs.double(), torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).double()
    packed = PackedBackend(torch.tensor([0, length]), length, CPU)
    expected = packed.scan(0, rule), packed.convolve(0, inputs, weight)
    # Every split is a row of its own: prompts of 1 .. 10 tokens, padded together, then a token at a time.
    splits = list(range(1, length))
    cache, store = KVCache(max_slots=16, max_length=16), StateStore(max_slots=16)
    store.reserve(len(splits))
    spans = [slice(split) for split in splits]
    decoding = 0
    while spans:
        step = StepBackend(
            cache,
            store,
            lengths=torch.zeros(decoding, dtype=torch.int64),
            longest=1,
            uniform=False,
            fresh_lengths=[] if decoding else splits,
            fresh_slots=[] if decoding else list(range(len(splits))),
        )
        tokens = torch.cat([torch.arange(length)[span] for span in spans])
        scanned = step.scan(0, part_of(rule, itemgetter(tokens)))
        convolved = step.convolve(0, inputs[tokens], weight)
        torch.testing.assert_close(scanned, expected[0][tokens], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(convolved, expected[1][tokens], rtol=1e-10, atol=1e-10)
        # The rows with the longest prompts end first; they have the last slots.
        spans = [slice(span.stop, span.stop + 1) for span in spans if span.stop < length]
        decoding = len(spans)


def test_slots_keep_their_content_when_the_store_grows_and_give_it_on():
    store = StateStore(max_slots=64)
    assert store.is_empty
    store.reserve(2)
    store.states(0, torch.zeros(0, 2, 3, 4))[1] = 7.0
    store.inputs(0, torch.zeros(0, 2, 5))[1] = 5.0
    store.reserve(40)
    assert len(store.states(0, torch.zeros(0, 2, 3, 4))) >= 40
    store.copy_rows(torch.tensor([1]), torch.tensor([30]))
    store.clear_rows(torch.tensor([1]))
    assert store.states(0, torch.zeros(0, 2, 3, 4)).flatten(1).sum(1).nonzero().tolist() == [[30]]
    assert float(store.inputs(0, torch.zeros(0, 2, 5))[30].mean()) == 5.0
    store.clear()
    assert store.is_empty
