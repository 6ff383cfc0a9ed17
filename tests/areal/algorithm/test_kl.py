"""KL estimators against exact enumeration: which gradient each has, in the loss and in the reward."""

from __future__ import annotations

import pytest
import torch

from areal.algorithm import kl

# The two distributions behind the golden vectors, recovered from them: four actions, logits up to a constant.
POLICY = [0.25, -1.15, 0.75, 0.0]
REFERENCE = [-1.1, -0.5, -0.8, 0.0]


def _distributions() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = torch.tensor(POLICY, dtype=torch.float64, requires_grad=True)
    return logits, logits.log_softmax(0), torch.tensor(REFERENCE, dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize(
    ("entry", "kind", "importance_weighted"),
    [
        ("k1 as loss", "k1", False),
        ("k2 as loss", "k2", False),
        ("k3 as loss", "k3", False),
        ("k3 x IS ratio (undetached)", "k3", True),
        ("k1 x IS ratio", "k1", True),
        ("true grad KL(pi||ref)", "k3_straight_through", False),
        ("true grad KL(ref||pi)", "k3", False),
    ],
)
def test_expected_gradient_as_a_loss_equals_exact_enumeration(golden, entry, kind, importance_weighted):
    logits, logp, logp_ref = _distributions()

    estimate = kl.estimate(kind, logp, logp_ref, importance_weighted=importance_weighted)
    (logp.exp().detach() * estimate).sum().backward()

    torch.testing.assert_close(logits.grad, golden["E_grad", entry], atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [("k1 in reward (score fn)", "k1"), ("k3 in reward", "k3"), ("true grad KL(pi||ref)", "k1")],
)
def test_expected_gradient_in_the_reward_equals_exact_enumeration(golden, entry, kind):
    logits, logp, logp_ref = _distributions()

    reward = kl.estimate(kind, logp, logp_ref).detach()
    (logp.exp().detach() * reward * logp).sum().backward()

    torch.testing.assert_close(logits.grad, golden["E_grad", entry], atol=1e-8, rtol=0)


def test_every_expected_gradient_in_the_golden_file_is_covered(golden):
    assert len(golden["E_grad"]) == 9


def test_estimators_agree_in_value_on_average_and_k3_is_never_negative():
    _, logp, logp_ref = _distributions()
    exact = (logp.exp() * (logp - logp_ref)).sum()

    for kind in ("k1", "k3", "k3_straight_through"):
        torch.testing.assert_close((logp.exp() * kl.estimate(kind, logp, logp_ref)).sum(), exact)
    assert (kl.estimate("k3", logp, logp_ref) >= 0).all()
