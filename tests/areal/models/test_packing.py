"""Packed documents do not see each other, and the attention backend is all that decides what a token sees."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from areal.api import ModelError
from areal.models import from_config
from areal.models.blocks.attention import PackedAttention

CONFIG = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
}
MODELS = {
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
# Equal, similar (padded together), wildly different (grouped by length), with documents of one token, and a single one.
LENGTHS = [(6, 6, 6), (5, 7, 6), (1, 30, 2, 3, 29, 1, 17), (1, 1, 1), (9,)]


def documents(lengths):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, CONFIG["vocab_size"], (length,), generator=generator) for length in lengths]


@pytest.mark.sample(5)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("family", MODELS)
def test_packed_documents_give_the_logits_and_gradients_of_separate_runs(family, lengths, run):
    model = from_config({**CONFIG, **MODELS[family]}, seed=1)
    texts = documents(lengths)

    packed = run(model, *texts)
    packed.square().sum().backward()
    packed_gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    separate = torch.cat([run(model, text) for text in texts])
    separate.square().sum().backward()

    torch.testing.assert_close(packed, separate, rtol=1e-4, atol=2e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(packed_gradients[name], parameter.grad, rtol=1e-3, atol=2e-3, msg=name)


def test_a_token_changes_only_its_own_document_and_only_later_tokens(run):
    model = from_config({**CONFIG, **MODELS["qwen3"]})
    first, second, third = documents((8, 9, 7))
    changed = second.clone()
    changed[4] = (changed[4] + 1) % CONFIG["vocab_size"]
    with torch.no_grad():
        difference = (run(model, first, second, third) - run(model, first, changed, third)).abs().amax(-1)
    assert difference[: 8 + 4].max() < 1e-5
    assert difference[8 + 4 : 8 + 9].min() > 1e-4
    assert difference[8 + 9 :].max() < 1e-5


def naive_attention(query, key, value, bounds, *, scale, window, chunk, softcap, sinks, alibi):
    """Attention by its definition, one query at a time, in float64."""
    query, key, value = (tensor.double() for tensor in (query, key, value))
    group = query.shape[1] // key.shape[1]
    output = torch.zeros(*query.shape[:2], value.shape[2], dtype=torch.float64)
    for start, end in itertools.pairwise(bounds):
        for token in range(start, end):
            first = start if window is None else max(start, token - window + 1)
            first = first if chunk is None else max(first, token - (token - start) % chunk)
            for head in range(query.shape[1]):
                scores = key[first : token + 1, head // group] @ query[token, head] * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if alibi is not None:
                    scores = scores + alibi[head].double() * torch.arange(first - token, 1)
                total = scores.exp().sum() + (0 if sinks is None else math.exp(sinks[head]))
                output[token, head] = (scores.exp() / total) @ value[first : token + 1, head // group]
    return output


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("window", "chunk"), [(None, None), (1, None), (3, None), (100, None), (None, 4), (None, 100), (3, 4)]
)
@pytest.mark.parametrize(
    ("softcap", "with_sinks", "with_alibi", "value_dim"),
    [
        (None, False, False, 8),
        (2.0, True, True, 6),
        pytest.param(2.0, False, False, 6, marks=pytest.mark.exhaustive),
        pytest.param(None, True, False, 6, marks=pytest.mark.exhaustive),
        pytest.param(None, False, True, 8, marks=pytest.mark.exhaustive),
    ],
)
def test_packed_attention_equals_its_definition(window, chunk, softcap, with_sinks, with_alibi, value_dim):
    generator = torch.Generator().manual_seed(4)
    bounds = [0, 1, 12, 12, 14, 25]  # lengths 1, 11, 0, 2, 11
    query = torch.randn(25, 6, 8, generator=generator)
    key = torch.randn(25, 2, 8, generator=generator)
    value = torch.randn(25, 2, value_dim, generator=generator)
    sinks = torch.randn(6, generator=generator) if with_sinks else None
    alibi = torch.rand(6, generator=generator) if with_alibi else None
    options = {"scale": 0.7, "window": window, "chunk": chunk, "softcap": softcap, "sinks": sinks, "alibi": alibi}
    backend = PackedAttention(torch.tensor(bounds, dtype=torch.int32), 25, torch.device("cpu"))
    expected = naive_attention(query, key, value, bounds, **options)
    torch.testing.assert_close(backend(0, query, key, value, **options).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bounds", [[0, 3], [1, 5], [0, 4, 2, 5], [0], []])
def test_bounds_that_do_not_fit_the_tokens_are_refused(bounds):
    with pytest.raises(ModelError, match="cu_seqlens must rise from 0 to the number of tokens, which is 5"):
        PackedAttention(torch.tensor(bounds, dtype=torch.int32), 5, torch.device("cpu"))


class Cache:
    """An attention backend that decodes: one new token per row, everything before it remembered."""

    def __init__(self):
        self.keys, self.values = {}, {}

    def __call__(self, layer, query, key, value, *, scale, window=None, **features):
        assert all(feature is None for feature in features.values())
        self.keys.setdefault(layer, []).append(key)
        self.values.setdefault(layer, []).append(value)
        first = 0 if window is None else -window
        keys, values = (
            torch.stack(past[layer][first:], 2) for past in (self.keys, self.values)
        )  # [row, head, time, dim]
        return torch.nn.functional.scaled_dot_product_attention(
            query.unsqueeze(2), keys, values, scale=scale, enable_gqa=True
        ).squeeze(2)


@pytest.mark.parametrize("family", MODELS)
def test_decoding_through_a_cache_gives_the_logits_of_the_packed_forward(family, run):
    model = from_config({**CONFIG, **MODELS[family]}, seed=2)
    texts = documents((11, 11, 11))
    cache = Cache()
    with torch.no_grad():
        steps = [
            model(torch.stack(column), torch.full((3,), time), None, 1, attention=cache)
            for time, column in enumerate(zip(*texts, strict=True))
        ]
        packed = run(model, *texts).unflatten(0, (3, 11))
    torch.testing.assert_close(torch.stack(steps, 1), packed, rtol=1e-4, atol=2e-5)


def test_positions_not_order_decide_the_rotation(run):
    model = from_config({**CONFIG, **MODELS["qwen3"]})
    (text,) = documents((8,))
    bounds = torch.tensor([0, 8], dtype=torch.int32)
    with torch.no_grad():
        plain = run(model, text)
        shifted = model(text, torch.arange(8) + 100, bounds, 8)
        stretched = model(text, torch.arange(8) * 3, bounds, 8)
    torch.testing.assert_close(shifted, plain, rtol=1e-3, atol=1e-4)  # only differences of positions count
    assert (stretched - plain).abs().max() > 1e-2


def test_forward_is_the_projection_of_hidden(run):
    model = from_config({**CONFIG, **MODELS["qwen2"], "tie_word_embeddings": True})
    (text,) = documents((8,))
    hidden = model.hidden(text, torch.arange(8), torch.tensor([0, 8]), 8)
    assert hidden.shape == (8, CONFIG["hidden_size"])
    assert torch.equal(model.project(hidden), run(model, text))
    assert torch.equal(model.project(hidden.unflatten(0, (2, 4))), run(model, text).unflatten(0, (2, 4)))


@pytest.mark.parametrize("family", MODELS)
def test_gradient_checkpointing_recomputes_the_blocks_and_changes_no_gradient(family, run):
    model = from_config({**CONFIG, **MODELS[family]})
    texts = documents((5, 7))
    calls = []
    model.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))

    def gradients():
        model.zero_grad()
        calls.clear()
        run(model, *texts).square().sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}, len(calls)

    plain, plain_calls = gradients()
    model.set_gradient_checkpointing(True)
    recomputed, recomputed_calls = gradients()
    assert (plain_calls, recomputed_calls) == (1, 2)
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


def test_gradient_checkpointing_never_shows_a_cache_the_same_keys_twice():
    model = from_config({**CONFIG, **MODELS["qwen3"]})
    model.set_gradient_checkpointing(True)
    cache = Cache()
    model(torch.tensor([1, 2]), torch.tensor([0, 0]), None, 1, attention=cache).sum().backward()
    assert [len(keys) for keys in cache.keys.values()] == [1, 1]


def test_shared_prefix_attention_is_refused():
    model = from_config({**CONFIG, **MODELS["qwen3"]})
    with pytest.raises(ModelError, match="tree_attn_meta"):
        model(torch.tensor([1]), torch.tensor([0]), torch.tensor([0, 1]), 1, object())
