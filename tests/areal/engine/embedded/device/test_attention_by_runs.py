"""Attention of the engine by a kernel for runs, here spelled out: no mask, no padding, and rows as long as they are."""

from __future__ import annotations

import itertools

import pytest
import torch

from areal.models.blocks import varlen_attention


class SpelledOutKernel:
    """The forward of a `VarlenKernel`, with keys that do not count."""

    def __init__(self):
        self.calls = {"fresh": 0, "decode": 0}

    def suits(self, query, key, value):
        return query.shape[-1] == value.shape[-1]

    def forward(self, query, key, value, runs, *, scale, window):
        self.calls["fresh" if runs.used is None else "decode"] += 1
        outputs, sums = [], []
        keys = list(itertools.pairwise(runs.key_bounds.tolist()))
        for number, (first, last) in enumerate(itertools.pairwise(runs.query_bounds.tolist())):
            start, end = keys[number]
            count = end - start if runs.used is None else int(runs.used[number])
            assert last - first <= runs.most_queries
            assert count <= runs.most_keys
            k, v = (
                each[start : start + count].repeat_interleave(query.shape[1] // key.shape[1], 1)
                for each in (key, value)
            )
            scores = torch.einsum("qhd,khd->hqk", query[first:last], k) * scale
            distance = torch.arange(count) - torch.arange(count - last + first, count)[:, None]
            hidden = distance > 0 if runs.causal else torch.zeros_like(distance, dtype=torch.bool)
            hidden = hidden if window is None else hidden | (distance <= -window)
            scores = scores.masked_fill(hidden, -torch.inf)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
            sums.append(scores.logsumexp(-1))
        return torch.cat(outputs), torch.cat(sums, 1)


@pytest.fixture
def kernel(monkeypatch):
    made = SpelledOutKernel()
    monkeypatch.setitem(varlen_attention.KERNELS, "cpu", made)
    return made


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", ["dense", "sliding window"])
def test_answers_by_runs_are_exact(world, on_device, kernel, variant):
    model = world.build_model(variant)
    engine = on_device(model, batch=8, eos=None)
    requests = [world.request(1 + 5 * n, seed=n, new=4 + 3 * n) for n in range(10)]
    found = world.generate(engine, requests)
    assert kernel.calls["fresh"] > 0
    assert kernel.calls["decode"] == 2 * engine.stats()["decode_steps"]  # two layers
    varlen_attention.KERNELS.pop("cpu")
    assert max(world.deviation(model, each) for each in found) < 1e-5


def test_what_the_kernel_lacks_is_computed_as_before(world, on_device, kernel):
    model = world.build_model("sliding window")
    for layer in model.layers:
        layer.self_attn.softcap = 20.0
    found = world.generate(on_device(model, eos=None), [world.request(9, seed=n, new=12) for n in range(3)])
    assert kernel.calls == {"fresh": 0, "decode": 0}
    varlen_attention.KERNELS.pop("cpu")
    assert max(world.deviation(model, each) for each in found) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="runs flash attention of a CUDA device; there is none")
def test_on_a_gpu_flash_attention_over_the_cache_equals_attention_with_a_mask(world):
    model = world.build_model(head_dim=64, hidden_size=128).to("cuda", torch.bfloat16)
    requests = [world.request(3 + 4 * n, seed=n, new=30) for n in range(12)]
    found = world.generate(world.build_engine(model, batch=16), requests)
    assert max(world.deviation(model, each) for each in found) < 0.1
