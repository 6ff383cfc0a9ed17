"""Distillation: values and gradients are those of the divergences over a whole vocabulary, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from areal.algorithm.aggregations import SequenceTokenMean, TokenMean, count
from areal.algorithm.distillation import DIVERGENCES, LOG_FLOOR, Distillation, rest
from areal.api import ConfigError, DataError

VOCABULARY = 7
NAMES = sorted(DIVERGENCES)


def _logits(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _closed_form(name: str, student_logits: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """The definition, term by term, in probabilities."""
    s, t = student_logits.softmax(-1), teacher.exp()
    kl = {
        "reverse_kl": lambda: (s * (s / t).log()).sum(-1),
        "forward_kl": lambda: (t * (t / s).log()).sum(-1),
        "js": lambda: (
            beta * (t * (t / (beta * t + (1 - beta) * s)).log()).sum(-1)
            + (1 - beta) * (s * (s / (beta * t + (1 - beta) * s)).log()).sum(-1)
        ),
    }
    return kl[name]()


def _gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("name", NAMES)
def test_sampled_tokens_have_the_value_and_gradient_of_the_divergence_on_average(name):
    settings = Distillation(divergence=name, beta=0.3, ratio_cap=1e6)
    logits = _logits(1, VOCABULARY).requires_grad_()
    teacher = _logits(2, VOCABULARY).log_softmax(-1)
    logp = logits.log_softmax(-1)
    # Every token once, weighted by how often the student would sample it: the expectation itself.
    per_token = settings.token_loss(logp, teacher_logp=teacher, logp_anchor=logp.detach())
    expected = _closed_form(name, logits, teacher, 0.3)

    mean = (logp.exp().detach() * per_token).sum()
    torch.testing.assert_close(mean, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(_gradient(mean, logits), _gradient(expected, logits), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_another_policy_are_weighted_back_to_the_student(name):
    settings = Distillation(divergence=name, beta=0.6, ratio_cap=1e6)
    logits = _logits(1, VOCABULARY).requires_grad_()
    teacher = _logits(2, VOCABULARY).log_softmax(-1)
    sampler = (logits.detach() + 0.5 * _logits(3, VOCABULARY)).log_softmax(-1)
    per_token = settings.token_loss(logits.log_softmax(-1), teacher_logp=teacher, logp_anchor=sampler)
    found = _gradient((sampler.exp() * per_token).sum(), logits)
    expected = _gradient(_closed_form(name, logits, teacher, 0.6), logits)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_top_k_of_the_whole_vocabulary_is_exact(name):
    settings = Distillation(divergence=name, beta=0.3, estimator="top_k", k=VOCABULARY)
    logits = _logits(1, 4, 5, VOCABULARY).requires_grad_()
    teacher = _logits(2, 4, 5, VOCABULARY).log_softmax(-1)
    expected = _closed_form(name, logits, teacher, 0.3)
    found = settings.listed_loss(logits.log_softmax(-1), teacher, complete=True)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    found_gradient, gradient = _gradient(found.sum(), logits), _gradient(expected.sum(), logits)
    torch.testing.assert_close(found_gradient, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, VOCABULARY - 1])
@pytest.mark.parametrize("name", NAMES)
def test_top_k_with_tail_is_the_divergence_of_the_coarser_distributions(name, k):
    settings = Distillation(divergence=name, beta=0.3, estimator="top_k", k=k)
    logits = _logits(1, 6, VOCABULARY).requires_grad_()
    teacher = _logits(2, 6, VOCABULARY).log_softmax(-1)
    ids = teacher.topk(k).indices
    found = settings.listed_loss(logits.log_softmax(-1).gather(-1, ids), teacher.gather(-1, ids), complete=False)

    listed = torch.zeros(6, VOCABULARY, dtype=torch.bool).scatter(-1, ids, torch.ones_like(ids, dtype=torch.bool))

    def coarse(p: Tensor) -> Tensor:
        return torch.cat([p.gather(-1, ids), p.masked_fill(listed, 0).sum(-1, keepdim=True)], dim=-1)

    expected = _closed_form(name, coarse(logits.softmax(-1)).log(), coarse(teacher.exp()).log(), 0.3)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(_gradient(found.sum(), logits), _gradient(expected.sum(), logits), rtol=1e-9, atol=1e-11)
    assert bool((found <= _closed_form(name, logits, teacher, 0.3) + 1e-12).all())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_moves_where_student_and_teacher_agree(name):
    logits = _logits(4, VOCABULARY).requires_grad_()
    logp = logits.log_softmax(-1)
    same = logp.detach()
    sampled = Distillation(divergence=name).token_loss(logp, teacher_logp=same, logp_anchor=same)
    listed = Distillation(divergence=name, estimator="top_k").listed_loss(logp[:3], same[:3], complete=False)
    for loss in (sampled.sum(), listed):
        assert loss.item() == pytest.approx(0.0, abs=1e-12)
    # Of each single token, not only on average: no noise is left at the end of training.
    assert _gradient(sampled.sum(), logits).abs().max().item() < 1e-12


def _batch(seed: int = 0) -> dict[str, Tensor]:
    student = _logits(seed, 6, 8, VOCABULARY).log_softmax(-1)
    teacher = _logits(seed + 1, 6, 8, VOCABULARY).log_softmax(-1)
    ids = teacher.topk(3).indices
    mask = (torch.rand(6, 8, generator=torch.Generator().manual_seed(seed)) < 0.6).double()
    mask[2] = 0.0
    return {
        "logp": student[..., 0],
        "teacher_logp": teacher[..., 0],
        "logp_anchor": student[..., 0] - 0.1 * _logits(seed + 2, 6, 8).abs(),
        "mask": mask,
        "candidate_logp": student.gather(-1, ids),
        "teacher_candidate_logp": teacher.gather(-1, ids),
    }


@pytest.mark.parametrize("aggregation", [TokenMean(), SequenceTokenMean()])
@pytest.mark.parametrize("estimator", ["sampled", "top_k"])
def test_parts_of_a_step_add_up(estimator, aggregation):
    settings = Distillation(divergence="js", estimator=estimator, k=3, weight=0.7)
    batch = _batch()
    denominators = count(batch["mask"])

    def loss_of(rows: slice) -> tuple[Tensor, dict[str, float], Tensor, Tensor]:
        part = {name: tensor[rows].clone() for name, tensor in batch.items()}
        logp, candidates = part["logp"].requires_grad_(), part["candidate_logp"].requires_grad_()
        output = settings.loss(**part, denominators=denominators, aggregation=aggregation)
        grads = torch.autograd.grad(output.loss, [logp, candidates], allow_unused=True, materialize_grads=True)
        return output.loss.detach(), {k: float(v) for k, v in output.metrics.items()}, *grads

    whole = loss_of(slice(None))
    parts = [loss_of(slice(start, end)) for start, end in ((0, 1), (1, 4), (4, 6))]
    torch.testing.assert_close(sum(part[0] for part in parts), whole[0], rtol=1e-12, atol=1e-14)
    for name, value in whole[1].items():
        assert sum(part[1][name] for part in parts) == pytest.approx(value, abs=1e-12), name
    for index in (2, 3):
        torch.testing.assert_close(torch.cat([part[index] for part in parts]), whole[index], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", ["sampled", "top_k"])
def test_what_lies_off_the_mask_reaches_nothing(estimator):
    settings = Distillation(estimator=estimator, k=3)
    batch = _batch()
    off = batch["mask"] == 0
    dirty = {
        name: tensor if name == "mask" else tensor.masked_fill(off if tensor.dim() == 2 else off[..., None], math.nan)
        for name, tensor in batch.items()
    }
    denominators = count(batch["mask"])
    found = []
    for values in (batch, dirty):
        leaves = {name: tensor.clone().requires_grad_(name.endswith("logp")) for name, tensor in values.items()}
        output = settings.loss(**leaves, denominators=denominators)
        output.loss.backward()
        grad = leaves["candidate_logp" if estimator == "top_k" else "logp"].grad
        assert grad is not None
        assert bool(grad.isfinite().all())
        found.append((output.loss.detach(), grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_tokens_without_a_number_of_the_teacher_are_counted_and_left_out():
    batch = _batch()
    position = batch["mask"].nonzero()[0].tolist()
    batch["teacher_logp"][position[0], position[1]] = -math.inf
    output = Distillation().loss(**batch, denominators=count(batch["mask"]))
    assert output.metrics["teacher_nonfinite_count"].item() == 1
    assert math.isfinite(output.loss.item())


def test_a_token_that_the_teacher_rules_out_costs_much_but_not_infinitely_much():
    teacher = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    student = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log().requires_grad_()
    loss = Distillation(estimator="top_k", k=2).listed_loss(student, teacher, complete=True)
    assert loss.item() == pytest.approx(0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - LOG_FLOOR))
    assert bool(_gradient(loss.sum(), student).isfinite().all())


def test_the_mass_that_is_left_survives_float32():
    full = torch.tensor([0.7, 0.3]).log().requires_grad_()
    left = rest(full)
    assert left.isfinite()
    assert bool(_gradient(left, full).isfinite().all())


def test_bounds_act_on_weights_and_ratios():
    logp = torch.zeros(1, dtype=torch.float64).requires_grad_()
    far = torch.full((1,), 5.0, dtype=torch.float64)
    forward = Distillation(divergence="forward_kl", ratio_cap=3.0)
    loss = forward.token_loss(logp - 6.0, teacher_logp=far - 6.0, logp_anchor=-far - 6.0)
    # Weight 3, and 1 - r with r = 3.
    assert _gradient(loss.sum(), logp).item() == pytest.approx(3.0 * (1.0 - 3.0))


def test_wrong_inputs_and_settings_are_refused():
    batch = _batch()
    del batch["candidate_logp"]
    with pytest.raises(ConfigError, match="candidate_logp"):
        Distillation(estimator="top_k").loss(**batch, denominators=count(batch["mask"]))
    batch["teacher_logp"] = batch["teacher_logp"][:, :-1]
    with pytest.raises(DataError, match="teacher_logp has shape"):
        Distillation().loss(**batch, denominators=count(batch["mask"]))
    for wrong in ({"beta": 1.0}, {"k": 0}, {"weight": 0.0}, {"divergence": "kl"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Distillation(**wrong)  # type: ignore[arg-type]  # wrong on purpose
