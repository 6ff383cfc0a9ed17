"""Token statistics: exact values, exact gradients, bounded memory."""

import pytest
import torch

from areal.engine.train.head import score_tokens


def _plain(logits, targets, temperature):
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1), log_p.mean(-1)


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 6, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(17, 6, dtype=torch.float64, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(0, 17, (11,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_plain_computation_for_any_chunk(problem, chunk, temperature):
    hidden, weight, targets = problem
    coefficients = torch.randn(3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    scores = score_tokens(
        lambda x: x @ weight.T, hidden, targets, temperature=temperature, chunk=chunk, with_distribution=True
    )
    found = (scores.logp, scores.entropy, scores.mean_logp)
    expected = _plain(hidden @ weight.T, targets, temperature)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    ours = torch.autograd.grad((torch.stack(found) * coefficients).sum(), (hidden, weight))
    theirs = torch.autograd.grad((torch.stack(expected) * coefficients).sum(), (hidden, weight))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunk", [4, 100])
def test_the_log_probability_alone_has_the_same_value_and_gradient(problem, chunk):
    hidden, weight, targets = problem
    results = []
    for with_distribution in (True, False):
        scores = score_tokens(
            lambda x: x @ weight.T, hidden, targets, temperature=0.7, chunk=chunk, with_distribution=with_distribution
        )
        assert (scores.entropy is None) == (scores.mean_logp is None) == (not with_distribution)
        results.append((scores.logp, *torch.autograd.grad(scores.logp.square().sum(), (hidden, weight))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.exhaustive
def test_the_gradient_agrees_with_finite_differences(problem):
    hidden, weight, targets = problem

    def run(hidden, weight):
        scores = score_tokens(lambda x: x @ weight.T, hidden, targets, temperature=0.5, chunk=4, with_distribution=True)
        return scores.logp, scores.entropy, scores.mean_logp

    assert torch.autograd.gradcheck(run, (hidden, weight))


@pytest.mark.parametrize("with_distribution", [False, True])
def test_no_more_than_one_chunk_of_logits_exists_or_is_kept_for_backward(problem, with_distribution):
    hidden, weight, targets = problem
    rows, kept = [], []

    def project(x):
        rows.append(x.shape[0])
        return x @ weight.T

    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        scores = score_tokens(project, hidden, targets, temperature=1.0, chunk=4, with_distribution=with_distribution)
        kept_rows = sum(shape[0] for shape in kept if shape[-1:] == (17,))
    assert kept_rows <= 4
    scores.logp.sum().backward()
    assert rows == [4, 4, 3, 3, 4, 4]


@pytest.mark.parametrize("with_distribution", [False, True])
def test_a_single_chunk_is_projected_only_once(problem, with_distribution):
    hidden, weight, targets = problem
    calls = []
    scores = score_tokens(
        lambda x: calls.append(1) or x @ weight.T,
        hidden,
        targets,
        temperature=1.0,
        chunk=11,
        with_distribution=with_distribution,
    )
    scores.logp.sum().backward()
    assert len(calls) == 1


def test_bfloat16_logits_are_reduced_in_float32():
    logits = (torch.randn(5, 1000, generator=torch.Generator().manual_seed(1)) * 5).bfloat16()
    targets = torch.arange(5)
    scores = score_tokens(lambda x: x, logits, targets, temperature=1.0, chunk=2, with_distribution=True)
    expected = _plain(logits.double(), targets, 1.0)
    assert scores.logp.dtype == torch.float32
    torch.testing.assert_close(scores.logp.double(), expected[0], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(scores.entropy.double(), expected[1], rtol=1e-5, atol=1e-5)


def test_extreme_and_impossible_logits_give_finite_entropy_and_gradient():
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, float("-inf"), 0.0]], requires_grad=True)
    scores = score_tokens(lambda x: x, logits, torch.tensor([0, 2]), temperature=1.0, chunk=10, with_distribution=True)
    torch.testing.assert_close(scores.logp, torch.tensor([0.0, -0.6931472]))
    torch.testing.assert_close(scores.entropy, torch.tensor([0.0, 0.6931472]))
    (scores.logp.sum() + scores.entropy.sum()).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, 0.0, 0.0], [-0.5, 0.0, 0.5]]))
