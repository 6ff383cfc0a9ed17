"""A beginning that is laid out once is seen as if it stood before each of its continuations."""

from __future__ import annotations

import itertools

import pytest
import torch

from areal.api import ModelError
from areal.models import from_config
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.shared_prefix import Branch, SharedPrefixAttention

CPU = torch.device("cpu")
# Roots and branches: one group of equal pieces; unequal roots and an empty branch; a root that nothing continues;
# branches of one root among others; lengths so different that they are attended in several batches; roots only.
LAYOUTS = {
    "one group": ([4], [(0, 3), (0, 3), (0, 3)]),
    "unequal": ([5, 2, 1], [(0, 2), (0, 4), (1, 0), (1, 1), (2, 3)]),
    "root alone": ([3, 6, 4], [(2, 2), (2, 3)]),
    "interleaved": ([3, 4], [(0, 2), (1, 3), (0, 1), (1, 2)]),
    "wild": ([1, 40, 2], [(0, 30), (1, 1), (1, 2), (2, 33), (0, 1), (1, 29), (2, 1), (2, 2)]),
    "no branch": ([3, 2], []),
}


def heads(num_tokens, num_heads, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, num_heads, dim, generator=generator, dtype=torch.float64, requires_grad=True)


def unrolled(roots, branches):
    """Packed indices of what each piece sees, itself at the end, and how many of them are its own."""
    starts = list(itertools.accumulate(roots, initial=0))
    rows = [(list(range(start, start + length)), length) for start, length in zip(starts, roots, strict=False)]
    first = starts[-1]
    for root, length in branches:
        seen = rows[root][0] + list(range(first, first + length))
        rows.append((seen, length))
        first += length
    return rows, first


def separately(query, key, value, rows, **options):
    """Every piece with its root before it, one at a time."""
    outputs = []
    for seen, own in rows:
        if own:
            backend = PackedAttention(torch.tensor([0, len(seen)]), len(seen), CPU)
            outputs.append(backend(0, query[seen], key[seen], value[seen], **options)[len(seen) - own :])
    return torch.cat(outputs)


@pytest.mark.sample(10)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("window", "chunk"), [(None, None), (1, None), (3, None), (100, None), (None, 3), (3, 2)])
@pytest.mark.parametrize(
    ("softcap", "with_sinks", "with_alibi", "num_kv_heads", "value_dim"),
    [
        (None, False, False, 2, 8),
        (2.0, True, True, 1, 6),
        pytest.param(2.0, False, False, 2, 8, marks=pytest.mark.exhaustive),
        pytest.param(None, True, False, 1, 6, marks=pytest.mark.exhaustive),
        pytest.param(None, False, True, 1, 8, marks=pytest.mark.exhaustive),
    ],
)
def test_results_and_gradients_equal_those_of_repeated_beginnings(
    layout, window, chunk, softcap, with_sinks, with_alibi, num_kv_heads, value_dim
):
    roots, branches = LAYOUTS[layout]
    rows, total = unrolled(roots, branches)
    inputs = [heads(total, 6, 8, 1), heads(total, num_kv_heads, 8, 2), heads(total, num_kv_heads, value_dim, 3)]
    sinks = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True) if with_sinks else None
    alibi = torch.linspace(0.1, 0.9, 6) if with_alibi else None
    options = {"scale": 0.7, "window": window, "chunk": chunk, "softcap": softcap, "sinks": sinks, "alibi": alibi}
    backend = SharedPrefixAttention(roots, [Branch(*branch) for branch in branches], CPU)

    found = backend(0, *inputs, **options)
    expected = separately(*inputs, rows, **options)

    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    leaves = [*inputs, *([sinks] if with_sinks else [])]
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    pairs = zip(
        torch.autograd.grad((found * weight).sum(), leaves),
        torch.autograd.grad((expected * weight).sum(), leaves),
        strict=True,
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_large_masks_are_avoided_by_attending_unequal_roots_apart(monkeypatch):
    roots, branches = LAYOUTS["unequal"]
    rows, total = unrolled(roots, branches)
    inputs = [heads(total, 2, 4, seed) for seed in range(3)]
    expected = separately(*inputs, rows, scale=0.5)
    monkeypatch.setattr("areal.models.blocks.shared_prefix.MAX_ROW_MASK_CELLS", 1)
    sizes = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def record(*arguments, attn_mask, **options):
        sizes.append(None if attn_mask is None else attn_mask.dim())
        return attend(*arguments, attn_mask=attn_mask, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", record)
    found = SharedPrefixAttention(roots, [Branch(*branch) for branch in branches], CPU)(0, *inputs, scale=0.5)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert len(sizes) > 3
    assert 4 not in sizes


def test_branches_of_one_root_do_not_see_each_other_nor_does_a_root_see_its_branches():
    query, key, value = (heads(10, 2, 4, seed).detach() for seed in range(3))
    backend = SharedPrefixAttention([4], [Branch(0, 3), Branch(0, 3)], CPU)
    before = backend(0, query, key, value, scale=0.5)
    changed_key, changed_value = key.clone(), value.clone()
    changed_key[5] += 1
    changed_value[5] += 1
    difference = (backend(0, query, changed_key, changed_value, scale=0.5) - before).abs().amax((1, 2))
    assert (difference > 1e-6).nonzero().flatten().tolist() == [5, 6]


@pytest.mark.parametrize(
    ("roots", "branches"), [([], []), ([0], []), ([3, 0], []), ([3], [(1, 2)]), ([3], [(-1, 2)]), ([3], [(0, -1)])]
)
def test_pieces_that_do_not_fit_together_are_refused(roots, branches):
    with pytest.raises(ModelError, match="shared prefixes need at least one root"):
        SharedPrefixAttention(roots, [Branch(*branch) for branch in branches], CPU)


def test_tokens_of_another_forward_are_refused():
    with pytest.raises(ModelError, match="got 6 packed tokens, but roots and branches have 5"):
        SharedPrefixAttention([3], [Branch(0, 2)], CPU)(0, *(heads(6, 2, 4, 1) for _ in range(3)), scale=1.0)


def test_gradient_checkpointing_recomputes_blocks_that_share_a_beginning():
    model = from_config(
        {
            "model_type": "qwen3",
            "vocab_size": 32,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "initializer_range": 0.3,
        }
    )
    tokens = torch.tensor([1, 2, 3, 4, 5, 6, 7])
    positions = torch.tensor([0, 1, 2, 3, 4, 3, 4])
    calls = []
    model.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))

    def gradients():
        model.zero_grad()
        calls.clear()
        backend = SharedPrefixAttention([3], [Branch(0, 2), Branch(0, 2)], CPU)
        model(tokens, positions, torch.tensor([0, 3, 5, 7]), 3, attention=backend).square().sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}, len(calls)

    plain, plain_calls = gradients()
    model.set_gradient_checkpointing(True)
    recomputed, recomputed_calls = gradients()
    assert (plain_calls, recomputed_calls) == (1, 2)
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
