"""Scores of tokens that were not sampled: exact, differentiable, and the same however a batch is cut."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from areal.api import DistilledBatch, LossOutput
from areal.engine.config import TrainEngineConfig
from areal.engine.train.candidates import Top
from areal.engine.train.head import score_tokens
from areal.engine.train.runner import FrozenModel

VOCAB = 29


@pytest.mark.parametrize("with_distribution", [True, False])
@pytest.mark.parametrize("chunk", [4, 100])
def test_candidates_have_the_value_and_gradient_of_the_plain_computation(chunk, with_distribution):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 6, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(17, 6, dtype=torch.float64, generator=generator).requires_grad_()
    targets = torch.randint(0, 17, (11,), generator=generator)
    ids = torch.randint(0, 17, (11, 5), generator=generator)  # some of them twice
    factors = torch.randn(11, 6, dtype=torch.float64, generator=generator)
    scores = score_tokens(
        lambda x: x @ weight.T,
        hidden,
        targets,
        temperature=0.7,
        chunk=chunk,
        with_distribution=with_distribution,
        candidates_NK=ids,
        top=Top(k=4, below=13),
    )
    log_p = (hidden @ weight.T / 0.7).log_softmax(-1)
    expected = log_p.gather(-1, torch.cat([targets[:, None], ids], dim=1))
    assert scores.candidate_logp is not None
    found = torch.cat([scores.logp[:, None], scores.candidate_logp], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    ours, theirs = (torch.autograd.grad((x * factors).sum(), (hidden, weight)) for x in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    assert scores.top is not None
    values, places = log_p.detach()[:, :13].topk(4)
    torch.testing.assert_close(scores.top, (places, values), rtol=1e-12, atol=1e-13)


def _distilled(batch, candidates):
    values = {item.name: getattr(batch, item.name) for item in fields(batch)}
    teachers, logp = torch.zeros_like(batch.lengths), torch.zeros_like(batch.logp_behave)
    return DistilledBatch(**values, teachers=teachers, teacher_logp=logp, candidates=candidates)


def test_a_frozen_model_lists_the_likeliest_tokens_of_every_sampled_one(make_model, make_batch):
    model, batch = make_model(dtype=torch.float64), make_batch()
    for budget in (1000, 12):
        config = TrainEngineConfig(dtype="float64", device="cpu", max_tokens_per_micro_batch=budget)
        teacher = FrozenModel.copy_of(model, config=config)
        found = teacher.forward_top(batch, Top(k=3, below=VOCAB - 4), temperature=0.8)
        torch.testing.assert_close(found.logp, teacher.forward_logp(batch, temperature=0.8, only_masked=True))
        assert found.candidates is not None
        assert found.candidate_logp is not None
        for row, column in batch.loss_mask.nonzero().tolist():
            prefix = batch.tokens[row, :column]
            sizes = torch.tensor([0, column], dtype=torch.int32)
            with torch.no_grad():
                states = model.hidden(prefix, torch.arange(column), sizes, column)
                log_p = (model.project(states[-1:])[0] / 0.8).log_softmax(-1)
            values, ids = log_p[: VOCAB - 4].topk(3)
            assert found.candidates[row, column].tolist() == ids.tolist()
            torch.testing.assert_close(found.candidate_logp[row, column], values, rtol=1e-10, atol=1e-12)
        assert not found.candidate_logp[batch.loss_mask == 0].any()


def test_the_loss_function_gets_candidates_with_gradient_however_the_batch_is_cut(make_model, make_engine, make_batch):
    batch = make_batch()
    ids = torch.randint(0, VOCAB, (*batch.tokens.shape, 3), generator=torch.Generator().manual_seed(5))
    results = []
    for budget in (1000, 12):
        model = make_model(dtype=torch.float64)
        engine = make_engine(model, max_tokens_per_micro_batch=budget)
        seen = []

        def loss_fn(logp, entropy, micro, seen=seen):
            assert isinstance(micro, DistilledBatch)
            assert micro.candidate_logp is not None
            seen.append((micro, micro.candidate_logp.detach()))
            return LossOutput(loss=(micro.candidate_logp.square().sum(-1) * micro.loss_mask).sum() / 19, metrics={})

        stats = engine.train_batch(_distilled(batch, ids), loss_fn, temperature=0.8, with_entropy=True)
        results.append((stats.loss, stats.grad_norm))
        assert stats.num_micro_batches == len(seen)
    assert len(seen) > 1
    assert results[0] == pytest.approx(results[1], rel=1e-9)

    model = make_model(dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for row, column in batch.loss_mask.nonzero().tolist():
        sizes = torch.tensor([0, column], dtype=torch.int32)
        states = model.hidden(batch.tokens[row, :column], torch.arange(column), sizes, column)
        log_p = (model.project(states[-1:])[0] / 0.8).log_softmax(-1)
        total = total + log_p[ids[row, column]].square().sum() / 19
    total.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert results[0] == pytest.approx((total.item(), norm.item()), rel=1e-9)
