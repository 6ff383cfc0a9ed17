"""Layers that attend to chosen tokens generate what training computes: at every split, across slots and updates."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from areal.api import WeightUpdateMeta
from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.states import StateStore, StepBackend
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.indexer import TokenIndexer
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs
from areal.models.loading import initialize

CPU = torch.device("cpu")
HIDDEN = 32
ARGS = SimpleNamespace(
    vocab_size=32, hidden_size=HIDDEN, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=8,
    max_position_embeddings=160, tie_word_embeddings=True,
)  # fmt: skip
SIZES = {"query_rank": 12, "kv_rank": 16, "nope_dim": 6, "rope_dim": 4, "value_dim": 8, "scale": 10**-0.5}


def model_of(seed=0, *, std=0.3, dtype=torch.float64, top_k=6):
    """An indexer, a layer that takes its choice over, and another indexer; far from uniform predictions."""
    layers = []
    for number, shares in enumerate((False, True, False)):
        indexer = TokenIndexer(
            HIDDEN, 12, num_heads=9, head_dim=8, top_k=top_k, norm_eps=1e-6, rope_dim=4, interleaved=bool(number)
        )
        attention = LatentAttention(
            number,
            ARGS,
            **SIZES,
            query_norm=RMSNorm(12, 1e-6),
            kv_norm=RMSNorm(16, 1e-6),
            indexer=None if shares else indexer,
            shares_selection=shares,
        )
        block = PreNormBlock(
            input_layernorm=RMSNorm(HIDDEN, 1e-6),
            self_attn=attention,
            post_attention_layernorm=RMSNorm(HIDDEN, 1e-6),
            mlp=GatedMLP(HIDDEN, 48),
        )
        layers.append(block)
    rotary = Rotary(RotaryArgs(), 4, interleaved=True)
    model = DecoderModel(ARGS, layers=layers, norm=RMSNorm(HIDDEN, 1e-6), rotary=rotary)
    initialize(model, std=std, seed=seed)
    return model.to(dtype)


def worst(world, model, responses):
    return max(world.deviation(model, response) for response in responses)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("std", "dtype", "limit"), [(0.3, torch.float64, 1e-6), (0.15, torch.float32, 1e-5)])
def test_step_by_step_equals_a_full_forward(world, std, dtype, limit):
    model = model_of(std=std, dtype=dtype)
    engine = world.build_engine(model, eos=None, batch=4)  # fewer slots than requests: late joiners and compaction
    lengths = (1, 2, 7, 30, 3, 64, 5, 5)
    requests = [world.request(length, seed=seed, new=20) for seed, length in enumerate(lengths)]
    requests += [world.request(12, prompt_seed=3, seed=seed, new=9 + seed) for seed in range(6)]
    assert worst(world, model, world.generate(engine, requests)) < limit


def test_what_is_chosen_matters_to_these_tests(world):
    responses = world.generate(world.build_engine(model_of(), eos=None), [world.request(20, seed=1, new=10)])
    assert worst(world, model_of(top_k=200), responses) > 1e-2


@pytest.mark.exhaustive
def test_after_a_weight_update_keys_of_indexers_are_those_of_the_new_weights(world):
    model, newer = model_of(), model_of(seed=1)
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


@pytest.mark.exhaustive
def test_aborted_rows_leave_others_their_keys(world):
    model = model_of()
    engine = world.build_engine(model, eos=None, batch=4)
    requests = [world.request(length, seed=length, new=40) for length in (6, 13, 20, 3)]

    async def main():
        tasks = [asyncio.create_task(engine.agenerate(request)) for request in requests]
        while engine.stats()["generated_tokens"] < 40:
            await asyncio.sleep(0)
        engine.abort([requests[0].request_id])
        return await asyncio.gather(*tasks)

    assert worst(world, model, asyncio.run(main())) < 1e-6


def test_decoding_equals_training_at_every_split():
    length, model = 13, model_of(top_k=4)
    tokens = torch.arange(length) * 5 % 32
    bounds = torch.tensor([0, length])
    expected = model(tokens, torch.arange(length), bounds, length, attention=PackedBackend(bounds, length, CPU))
    # Every split is a row of its own: prompts of 1 .. 12 tokens, then a token at a time.
    splits = list(range(1, length))
    cache, store = KVCache(max_slots=16, max_length=16), StateStore(max_slots=16)
    cache.reserve(len(splits), length)
    spans = [range(split) for split in splits]
    decoding = 0
    while spans:
        past = torch.tensor([span.start for span in spans[:decoding]], dtype=torch.int64)
        step = StepBackend(
            cache,
            store,
            lengths=past,
            longest=int(past.max()) + 1 if decoding else 1,
            uniform=False,
            fresh_lengths=[] if decoding else splits,
            fresh_slots=[] if decoding else list(range(len(splits))),
        )
        places = torch.cat([torch.tensor(list(span)) for span in spans])
        starts = torch.tensor([0, *(len(span) for span in spans)]).cumsum(0).to(torch.int32)
        with torch.no_grad():
            found = model(tokens[places], places, starts, length, attention=step)
        torch.testing.assert_close(found, expected[places], rtol=1e-9, atol=1e-9)
        # The rows with the longest prompts end first; they have the last slots.
        spans = [range(span.stop, span.stop + 1) for span in spans if span.stop < length]
        decoding = len(spans)


def test_the_cache_moves_and_clears_keys_of_indexers_with_the_others():
    cache = KVCache(max_slots=64, max_length=64)
    cache.reserve(2, 4)
    cache.index_keys(0, torch.zeros(0, 3))[1] = 7.0
    cache.reserve(40, 30)
    cache.copy_rows(torch.tensor([1]), torch.tensor([30]), 2)
    cache.clear_rows(torch.tensor([1]))
    assert cache.index_keys(0, torch.zeros(0, 3)).flatten(2).sum(-1).nonzero().tolist() == [[30, 0], [30, 1]]
    cache.clear()
    cache.reserve(1, 1)
    assert float(cache.index_keys(0, torch.zeros(0, 3)).sum()) == 0
