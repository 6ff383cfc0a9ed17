"""Attention by runs of keys equals attention in padded rectangles, in values and gradients.

The kernel here is spelled out in plain torch, in float64, so that what is made of it can be compared on any machine:
which runs there are, how parts of the keys are merged, and what gradients the parts get.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from areal.engine.config import TrainEngineConfig
from areal.models.blocks import varlen_attention
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.padded_attention import AttentionOptions
from areal.models.blocks.shared_prefix import Branch, SharedPrefixAttention
from areal.models.blocks.varlen_attention import FlashKernel, KeyRuns, attend_runs, find_kernel

CPU, META = torch.device("cpu"), torch.device("meta")
PLAIN = AttentionOptions(0.5, None, None, None, None, None)


class PlainKernel:
    """See `VarlenKernel`."""

    calls = 0

    def suits(self, query, key, value):
        return query.shape[-1] == value.shape[-1]

    def forward(self, query, key, value, runs, *, scale, window):
        self.calls += 1
        outputs, sums = [], []
        for _, _, k, v, scores in pieces(query, key, value, runs, scale, window):
            sums.append(scores.logsumexp(-1))
            outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
            assert k.shape == v.shape
        return torch.cat(outputs), torch.cat(sums, 1)

    def backward(self, gradient, query, key, value, output, log_sum, runs, *, scale, window):
        found = tuple(torch.zeros_like(each) for each in (query, key, value))
        size = query.shape[1] // key.shape[1]
        for rows, columns, k, v, scores in pieces(query, key, value, runs, scale, window):
            g, o, q = (each[rows].transpose(0, 1) for each in (gradient, output, query))
            weights = (scores - log_sum[:, rows, None]).exp()
            of_scores = weights * (g @ v.mT - (g * o).sum(-1, keepdim=True)) * scale
            found[0][rows] = (of_scores @ k).transpose(0, 1)
            for target, repeated in ((found[1], of_scores.mT @ q), (found[2], weights.mT @ g)):
                target[columns] = repeated.unflatten(0, (-1, size)).sum(1).transpose(0, 1)
        return found


def pieces(query, key, value, runs, scale, window):
    """Rows, columns, and [heads, ...] of keys, values and masked scores, of each run."""
    size = query.shape[1] // key.shape[1]
    bounds = [list(itertools.pairwise(each.tolist())) for each in (runs.query_bounds, runs.key_bounds)]
    for (first, last), (start, end) in zip(*bounds, strict=True):
        rows, columns = slice(first, last), slice(start, end)
        q = query[rows].transpose(0, 1)
        k, v = (each[columns].transpose(0, 1).repeat_interleave(size, 0) for each in (key, value))
        distance = torch.arange(last - first)[:, None] + (end - start) - (last - first) - torch.arange(end - start)
        seen = distance >= 0 if runs.causal else torch.ones_like(distance, dtype=torch.bool)
        seen = seen if window is None else seen & (distance < window)
        yield rows, columns, k, v, (q @ k.mT * scale).masked_fill(~seen, float("-inf"))


@pytest.fixture
def kernel(monkeypatch):
    """The kernel above, for CPUs while the test runs."""
    made = PlainKernel()
    monkeypatch.setitem(varlen_attention.KERNELS, "cpu", made)
    return made


def drawn(num_tokens, num_heads, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, num_heads, dim, generator=generator, dtype=torch.float64, requires_grad=True)


def with_gradients(backend, num_tokens, kv_heads, value_dim=8, **options):
    inputs = [drawn(num_tokens, 4, 8, 1), drawn(num_tokens, kv_heads, 8, 2), drawn(num_tokens, kv_heads, value_dim, 3)]
    found = backend(0, *inputs, scale=0.4, **options)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return [found, *torch.autograd.grad(found, inputs, upstream)]


@pytest.mark.parametrize("window", [None, 1, 3, 40])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_packed_documents_by_runs_are_those_in_rectangles(kernel, monkeypatch, window, kv_heads):
    bounds = torch.tensor([0, 5, 5, 6, 20, 22])
    found = with_gradients(PackedAttention(bounds, 22, CPU), 22, kv_heads, window=window)
    assert kernel.calls == 1
    monkeypatch.delitem(varlen_attention.KERNELS, "cpu")
    expected = with_gradients(PackedAttention(bounds, 22, CPU), 22, kv_heads, window=window)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


LAYOUTS = {
    "one group": ([4], [(0, 3), (0, 3), (0, 3)], 2),
    "unequal": ([5, 2, 1], [(0, 2), (0, 4), (1, 0), (1, 1), (2, 3)], 2),
    "a root alone": ([3, 6, 4], [(1, 2), (2, 3)], 2),
    "out of order": ([3, 4], [(0, 2), (1, 3), (0, 1)], 1),
    "no branch": ([3, 2], [], 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 2, 40])
def test_branches_merge_what_they_see_of_their_root_and_of_themselves(kernel, monkeypatch, layout, window):
    roots, pairs, parts = LAYOUTS[layout]
    branches, total = [Branch(*pair) for pair in pairs], sum(roots) + sum(length for _, length in pairs)
    found = with_gradients(SharedPrefixAttention(roots, branches, CPU), total, 2, window=window)
    # The roots', and one of each part of what branches see, unless a window cuts that.
    assert kernel.calls == (1 if window == 2 or parts == 1 else 3)
    monkeypatch.delitem(varlen_attention.KERNELS, "cpu")
    expected = with_gradients(SharedPrefixAttention(roots, branches, CPU), total, 2, window=window)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "change",
    [{"softcap": 2.0}, {"sinks": torch.zeros(4)}, {"alibi": torch.ones(4)}, {"selected": True}, {"chunk": 3}],
    ids=lambda change: next(iter(change)),
)
def test_what_the_kernel_lacks_is_left_to_rectangles(kernel, change):
    query, key, value = drawn(6, 4, 8, 1), drawn(6, 2, 8, 2), drawn(6, 2, 8, 3)
    assert find_kernel(query, key, value, PLAIN, longest=6) is kernel
    assert find_kernel(query, key, value, PLAIN._replace(chunk=6), longest=6) is kernel
    assert find_kernel(query, key, value, PLAIN._replace(**change), longest=6) is None
    assert find_kernel(query, key, value[..., :6], PLAIN, longest=6) is None


def test_without_a_kernel_for_the_device_there_is_none():
    heads = [torch.empty(3, 2, 8, device=META, dtype=torch.bfloat16)] * 3
    assert find_kernel(*heads, PLAIN, longest=3) is None


def test_a_training_step_with_shared_prompts_is_the_same_by_runs(kernel, monkeypatch, make_engine_batch):
    def step():
        engine, batch, loss_fn = make_engine_batch()
        stats = engine.train_batch(batch, loss_fn)
        return stats, {name: value.clone() for name, value in engine.weights().items()}

    (found, ours), calls = step(), kernel.calls
    monkeypatch.delitem(varlen_attention.KERNELS, "cpu")
    expected, theirs = step()
    assert calls >= 6
    assert found.loss == pytest.approx(expected.loss, rel=1e-10)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-8)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-7, atol=1e-9)


@pytest.fixture
def make_engine_batch():
    """An engine, a batch of two prompts with answers each, and a loss."""
    from areal.api import LossOutput, PaddedBatch
    from areal.engine.train.engine import TrainingEngine
    from areal.models import from_config

    sizes = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64}

    def make():
        model = from_config({"model_type": "qwen3", **sizes, "initializer_range": 0.3}, dtype=torch.float64, seed=0)
        config = TrainEngineConfig(lr=1e-2, dtype="float64", device="cpu", gradient_checkpointing=True)
        tokens = torch.randint(0, 29, (6, 14), generator=torch.Generator().manual_seed(0))
        tokens[:3, :5], tokens[3:, :5] = tokens[0, :5].clone(), tokens[3, :5].clone()
        mask = torch.ones(6, 14)
        mask[:, :5] = 0
        versions = torch.where(mask > 0, 0, -1)
        batch = PaddedBatch(
            tokens=tokens, lengths=torch.full((6,), 14), loss_mask=mask, logp_behave=torch.zeros(6, 14),
            versions=versions, turn_ids=versions, rewards=torch.zeros(6), groups=torch.arange(6) // 3,
            truncated=torch.zeros(6, dtype=torch.bool), advantages=torch.ones(6, 14),
        )  # fmt: skip

        def loss_fn(logp, entropy, part):
            return LossOutput(loss=-(logp * part.loss_mask).sum() / 54, metrics={})

        return TrainingEngine(model, config=config), batch, loss_fn

    return make


def test_flash_attention_is_called_as_its_operators_want_it():
    """Shapes and arguments only: on this device nothing is computed."""
    queries, keys = (torch.empty(9, heads, 16, dtype=torch.bfloat16, device=META) for heads in (4, 2))
    runs = KeyRuns.of([5, 4], [5, 4], CPU, causal=True)
    runs = runs._replace(query_bounds=runs.query_bounds.to(META), key_bounds=runs.key_bounds.to(META))
    for window in (None, 3):
        kernel = FlashKernel()
        output, log_sum = kernel.forward(queries, keys, keys, runs, scale=0.5, window=window)
        assert (output.shape, output.dtype, log_sum.shape) == ((9, 4, 16), torch.bfloat16, (4, 9))
        found = kernel.backward(output, queries, keys, keys, output, log_sum, runs, scale=0.5, window=window)
        assert [each.shape for each in found] == [queries.shape, keys.shape, keys.shape]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a CUDA device")
def test_flash_attention_agrees_with_the_kernel_spelled_out():
    runs = KeyRuns.of([5, 4], [7, 4], torch.device("cuda"), causal=True)
    inputs = [drawn(n, heads, 16, seed).detach() for n, heads, seed in ((9, 4, 1), (11, 2, 2), (11, 2, 3))]
    on_gpu = [each.to("cuda", torch.bfloat16).requires_grad_() for each in inputs]
    exact = [each.detach().cpu().double().requires_grad_() for each in on_gpu]
    host = runs._replace(query_bounds=runs.query_bounds.cpu(), key_bounds=runs.key_bounds.cpu())
    found = attend_runs(FlashKernel(), on_gpu[0], [(*on_gpu[1:], runs)], scale=0.5, window=4)
    expected = attend_runs(PlainKernel(), exact[0], [(*exact[1:], host)], scale=0.5, window=4)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=2e-2, atol=2e-2)
    ours = torch.autograd.grad(found.float().sum(), on_gpu)
    for one, other in zip(ours, torch.autograd.grad(expected.sum(), exact), strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (9, 0), (12, 0)])
def test_heads_whose_gradient_only_some_gpus_have_room_for_are_left_to_them(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    fits = [
        size
        for size in (64, 192, 200, 224, 232, 256)
        if FlashKernel().suits(*[torch.zeros(1, 1, size, dtype=torch.bfloat16)] * 3)
    ]
    wanted = {(7, 5): [], (8, 0): [64, 192, 200, 224, 232, 256], (9, 0): [64, 192, 200, 224, 232, 256]}
    assert fits == wanted.get(capability, [64, 192, 232, 256])
