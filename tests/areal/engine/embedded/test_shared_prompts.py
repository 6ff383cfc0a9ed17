"""A prompt that rows share is kept once, and attention over it and a row's own tokens is attention over both."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from areal.api import FaultError
from areal.engine.embedded.attention import StepAttention
from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.prompts import NO_GROUP, SharedPrompts

HEADS, KV_HEADS, DIM = 6, 2, 8
# Prompt tokens kept, of each group; group of each row; entries that each row has itself.
PROMPTS = (5, 12)
GROUPS = np.array([1, 0, NO_GROUP, 1, 1, 0])
OWN = np.array([3, 1, 9, 4, 1, 6])
FEATURES = {
    "plain": {},
    "a window beyond some prompts": {"window": 4},
    "a window": {"window": 9},
    "chunks": {"chunk": 8},
    "a bound on scores": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS)},
    "position biases": {"alibi": torch.linspace(0.1, 0.9, HEADS)},
    "position biases and a window": {"alibi": torch.linspace(0.1, 0.9, HEADS), "window": 6},
}


def caches(generator, value_dim):
    """Keys and values of every row in one cache, and the same by prompts and own tokens."""
    whole, own = (KVCache(max_slots=8, max_length=64) for _ in range(2))
    prompts = SharedPrompts(max_slots=8, max_length=64)
    for length in PROMPTS:
        prompts.open(length)
    prompts.reserve()
    whole.reserve(len(GROUPS), 32)
    own.reserve(len(GROUPS), 16)
    for number, width in enumerate((DIM, value_dim)):
        like = torch.zeros(1, KV_HEADS, DIM), torch.zeros(1, KV_HEADS, value_dim)
        kept = [cache.layer(0, *like)[number] for cache in (whole, own, prompts.cache)]
        shared = [torch.randn(length, KV_HEADS, width, generator=generator) for length in PROMPTS]
        for group, values in enumerate(shared):
            kept[2][group, : len(values)] = values
        for row, (group, count) in enumerate(zip(GROUPS, OWN, strict=True)):
            values = torch.randn(count, KV_HEADS, width, generator=generator)
            kept[1][row, :count] = values
            before = shared[group] if group >= 0 else values[:0]
            kept[0][row, : len(before) + count] = torch.cat((before, values))
    return whole, own, prompts


def step(cache, lengths, own, **options):
    return StepAttention(
        cache,
        lengths=torch.from_numpy(lengths.copy()),
        longest=int(own.max()) + 1,
        uniform=False,
        fresh_lengths=[],
        fresh_slots=[],
        **options,
    )


@pytest.mark.parametrize("value_dim", [DIM, 6])
@pytest.mark.parametrize("feature", FEATURES)
def test_attention_over_two_parts_is_that_over_the_whole(feature, value_dim):
    generator = torch.Generator().manual_seed(0)
    whole, own, prompts = caches(generator, value_dim)
    before = np.where(GROUPS >= 0, np.array(PROMPTS)[GROUPS], 0)
    lengths = before + OWN
    query = torch.randn(len(GROUPS), HEADS, DIM, generator=generator)
    key, value = (torch.randn(len(GROUPS), KV_HEADS, width, generator=generator) for width in (DIM, value_dim))
    options = {"scale": 0.4, **FEATURES[feature]}
    wanted = step(whole, lengths, lengths)(0, query, key, value, **options)
    found = step(own, lengths, OWN, shared=prompts.grouped(GROUPS, before))(0, query, key, value, **options)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)


def test_groups_without_rows_make_room_and_the_others_stay_dense():
    prompts = SharedPrompts(max_slots=8, max_length=64)
    like = torch.zeros(1, 1, 2)
    assert [prompts.open(length) for length in (3, 4, 5)] == [0, 1, 2]
    prompts.reserve()
    keys, _ = prompts.cache.layer(0, like, like)
    keys[2, :5] = 7.0
    rows = np.array([2, NO_GROUP, 1, 2])
    prompts.close_unused(rows)
    assert rows.tolist() == [0, NO_GROUP, 1, 0]
    assert (keys[0, :5] == 7.0).all(), "the last group moved into the hole"
    assert not keys[2].any(), "nothing is left behind"
    layout = prompts.grouped(rows, np.array([5, 0, 4, 5]))
    assert layout.lengths.tolist() == [5, 4]
    assert layout.rows.tolist() == [0, 2, 3]
    prompts.close_unused(np.array([NO_GROUP]))
    assert prompts.grouped(np.array([NO_GROUP]), np.array([0])) is None


def test_a_layout_is_not_taken_for_that_of_other_rows():
    prompts = SharedPrompts(max_slots=16, max_length=64)
    for _ in range(5):
        prompts.open(2)
    rows = np.array([0, 1, 2])
    assert prompts.grouped(rows, np.full(3, 2)).members == 1
    prompts.close_unused(rows)
    # The same numbers in a row, one after the other: groups, tokens before, lengths.
    assert prompts.grouped(np.array([0, 1, 2, 2]), np.full(4, 2)).members == 2


def test_prompts_without_memory_end_their_requests(world, monkeypatch):
    engine = world.build_engine(world.build_model("dense"))
    requests = [world.request(12, prompt_seed=0, seed=seed, new=4) for seed in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "reserve", out_of_memory)
        with pytest.raises(FaultError, match="not enough memory"):
            world.generate(engine, requests)
    assert len(world.generate(engine, requests)) == 3


def out_of_memory(cache, slots, length):
    raise RuntimeError("not enough memory")


def test_members_that_come_later_end_early_or_outlive_an_update_have_exact_log_probabilities(world):
    from areal.api import WeightUpdateMeta

    model = world.build_model("sliding window")
    engine = world.build_engine(model, batch=6)
    # Four groups of four in six slots: members join a prompt that is there, and prompts come and go.
    requests = [
        world.request(12 + 3 * group, prompt_seed=group, seed=10 * group + member, new=4 + 5 * member)
        for group in range(4)
        for member in range(4)
    ]
    for response in world.generate(engine, requests):
        assert world.deviation(model, response) < 1e-5
    assert engine.stats()["prefill_tokens"] < sum(len(each.input_ids) for each in requests) / 2
    newer = world.build_model("sliding window", seed=5)
    engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=newer.state_dict()))
    for response in world.generate(engine, requests):
        assert world.deviation(newer, response) < 1e-5
