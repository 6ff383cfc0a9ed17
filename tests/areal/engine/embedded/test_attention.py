"""Cached attention equals attention over the whole sequence, for every feature a family may ask for."""

from __future__ import annotations

import math

import pytest
import torch

from areal.engine.embedded.attention import StepAttention
from areal.engine.embedded.cache import KVCache

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def reference(query, key, value, *, scale, window, chunk, softcap, sinks, alibi):
    """Token by token in float64, straight from the contract."""
    query, key, value = query.double(), key.double(), value.double()
    out = torch.zeros(len(query), HEADS, value.shape[2], dtype=torch.float64)
    for i in range(len(query)):
        start = 0 if window is None else max(0, i - window + 1)
        start = start if chunk is None else max(start, i - i % chunk)
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = key[start : i + 1, shared] @ query[i, head] * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if alibi is not None:
                scores = scores + alibi[head].double() * torch.arange(start - i, 1)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head].double()[None]))
            weights = torch.softmax(scores, -1)[: i + 1 - start]
            out[i, head] = weights @ value[start : i + 1, shared]
    return out


@pytest.mark.sample(10)
@pytest.mark.parametrize("value_dim", [HEAD_DIM, 12])
@pytest.mark.parametrize(
    ("window", "chunk"), [(None, None), (1, None), (4, None), (100, None), (None, 3), (None, 100), (4, 5)]
)
@pytest.mark.parametrize(("softcap", "with_sinks"), [(None, False), (2.0, False), (None, True), (2.0, True)])
@pytest.mark.parametrize("with_alibi", [False, True])
def test_prompts_and_later_tokens_in_mixed_steps_equal_whole_sequence_attention(
    window, chunk, softcap, with_sinks, with_alibi, value_dim
):
    generator = torch.Generator().manual_seed(0)
    totals, prompts = [11, 9, 70, 6], [5, 1, 66, 4]  # the last sequence joins later; lengths force several chunks

    def heads(count, dim):
        return [torch.randn(total, count, dim, generator=generator) for total in totals]

    query, key, value = heads(HEADS, HEAD_DIM), heads(KV_HEADS, HEAD_DIM), heads(KV_HEADS, value_dim)
    sinks = torch.randn(HEADS, generator=generator) if with_sinks else None
    options = {
        "scale": 1 / math.sqrt(HEAD_DIM),
        "window": window,
        "chunk": chunk,
        "softcap": softcap,
        "sinks": sinks,
        "alibi": torch.tensor([0.7, 0.3, 0.1, 0.05]) if with_alibi else None,
    }
    cache = KVCache(max_slots=4, max_length=100)
    done: list[int] = []
    produced: list[list[torch.Tensor]] = [[] for _ in totals]
    for step in range(3):
        arriving = prompts[:3] if step == 0 else prompts[3:] if step == 1 else []
        first = len(done)
        spans = [(row, slice(length, length + 1)) for row, length in enumerate(done)]
        spans += [(first + i, slice(0, length)) for i, length in enumerate(arriving)]
        cache.reserve(first + len(arriving), max(max(done, default=0) + 1, *arriving, 1))
        attention = StepAttention(
            cache,
            lengths=torch.tensor(done, dtype=torch.int64),
            longest=max(done, default=0) + 1,
            uniform=False,
            fresh_lengths=arriving,
            fresh_slots=list(range(first, first + len(arriving))),
        )
        packed = [torch.cat([source[row][span] for row, span in spans]) for source in (query, key, value)]
        out = attention(0, *packed, **options)
        assert out.shape[2] == value_dim
        for (row, _), piece in zip(spans, out.split([s.stop - s.start for _, s in spans]), strict=True):
            produced[row].append(piece)
        done = [length + 1 for length in done] + arriving
    for row, pieces in enumerate(produced):
        got = torch.cat(pieces).double()
        expected = reference(query[row], key[row], value[row], **options)[: len(got)]
        torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_linear_biases_of_long_distances_survive_bfloat16(softcap):
    generator = torch.Generator().manual_seed(1)
    total, alibi = 700, torch.tensor([0.01, 0.003, 0.02, 0.001])
    query, key = (
        torch.randn(total, count, HEAD_DIM, generator=generator).bfloat16() / 8 for count in (HEADS, KV_HEADS)
    )
    value = torch.randn(total, KV_HEADS, 1, generator=generator).bfloat16()
    options = {"scale": 1.0, "window": None, "chunk": None, "softcap": softcap, "sinks": None, "alibi": alibi}
    cache = KVCache(max_slots=1, max_length=800)
    produced = []
    for step in range(3):
        cache.reserve(1, total)
        done = [] if step == 0 else [total - 3 + step]
        span = slice(0, total - 2) if step == 0 else slice(done[0], done[0] + 1)
        attention = StepAttention(
            cache,
            lengths=torch.tensor(done, dtype=torch.int64),
            longest=max(done, default=0) + 1,
            uniform=True,
            fresh_lengths=[] if step else [total - 2],
            fresh_slots=[] if step else [0],
        )
        produced.append(attention(0, query[span], key[span], value[span], **options))
    expected = reference(query, key, value, **options)
    torch.testing.assert_close(torch.cat(produced).double(), expected, atol=4e-3, rtol=2e-2)


def test_the_cache_keeps_its_content_when_it_grows():
    cache = KVCache(max_slots=64, max_length=500)
    cache.reserve(2, 10)
    new = torch.ones(1, KV_HEADS, HEAD_DIM)
    keys, _ = cache.layer(0, new, new)
    keys[1, 5] = 7.0
    cache.reserve(40, 300)
    keys, values = cache.layer(0, new, new)
    assert keys.shape[0] >= 40
    assert keys.shape[1] >= 300
    assert values.shape == keys.shape
    assert float(keys[1, 5].min()) == 7.0
    assert float(keys.sum()) == 7.0 * KV_HEADS * HEAD_DIM
    cache.reserve(64, 500)
    assert cache.layer(0, new, new)[0].shape[:2] == (64, 500)
