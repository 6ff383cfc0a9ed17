"""Every objective in the golden file: loss and each entry of the gradient, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from areal.algorithm import get_objective, kl
from areal.algorithm.aggregate import aggregate, count, token_weights

TOLERANCE = 1e-8

# Golden name -> (preset, overrides). Advantages are the golden ones, times the entry of SCALE where there is one.
OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo(.2,.2)/token-mean": ("ppo", {}),
    "ppo(.2,.2)/seq-mean-token-mean": ("grpo", {}),
    "ppo(.2,.2)/seq-mean-token-sum": ("ppo", {"aggregation": "seq-mean-token-sum"}),
    "ppo(.2,.2)/seq-mean-token-sum-norm": ("drgrpo", {"length_norm": 7}),
    "ppo(.2,.2)/prompt-mean": ("ppo", {"aggregation": "prompt-mean"}),
    "ppo clip-higher(.2,.28)": ("dapo", {}),
    "ppo dual-clip c=3": ("ppo", {"dual_clip": 3}),
    "ppo dual-clip c=1.05": ("ppo", {"dual_clip": 1.05}),
    "gspo-token(.2,.2)/seq-mean": ("gspo", {"clip_low": 0.2, "clip_high": 0.2}),
    "gspo-seq(.2,.2)": ("gspo", {"clip_low": 0.2, "clip_high": 0.2}),
    "gspo(.2,.2)/token-mean (AReaL-style agg)": (
        "gspo",
        {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token-mean", "allow_length_weighting": True},
    ),
    "cispo(1,4)": ("cispo", {}),
    "cispo(.2,.2)": ("cispo", {"clip_low": 0.2, "clip_high": 0.2}),
    "sapo(1,1.05)/seq-mean": ("sapo", {}),
    "sapo(1,1.05)/token-mean": ("sapo", {"aggregation": "token-mean"}),
    "dppo-tv(.1)": ("dppo", {"dppo_low": 0.1, "dppo_high": 0.1}),
    "dppo-kl(.004)": ("dppo", {"dppo_kind": "kl", "dppo_low": 0.004, "dppo_high": 0.004}),
    "reinforce": ("ppo", {"surrogate": "reinforce"}),
    "reinforce+tis(1.2)": ("ppo", {"surrogate": "reinforce", "correction": "tis", "correction_high": 1.2}),
    "decoupled ppo, no cap": ("ppo", {"decoupled": True}),
    "decoupled ppo + tis(1.2)": ("ppo", {"decoupled": True, "correction": "tis", "correction_high": 1.2}),
    "decoupled ppo + icepop(.8,1.2), denom=original": (
        "icepop",
        {"decoupled": True, "correction_low": 0.8, "correction_high": 1.2},
    ),
    "ppo + seq_is(1.1)": ("ppo", {"correction": "tis", "correction_level": "sequence", "correction_high": 1.1}),
    "ppo + seq_mis(1.2)": ("ppo", {"correction": "mis", "correction_high": 1.2}),
    "ppo + opsm(-10)": ("ppo", {"correction": "opsm", "correction_high": -10}),
    "kl k1": ("ppo", {"kl": "k1", "kl_place": "loss", "kl_coef": 1.0, "kl_importance_weighted": True}),
    "kl k2": ("ppo", {"kl": "k2", "kl_place": "loss", "kl_coef": 1.0}),
    "kl k3": ("ppo", {"kl": "k3", "kl_place": "loss", "kl_coef": 1.0}),
    "kl k3+ (k2 grad)": ("ppo", {"kl": "k3_straight_through", "kl_place": "loss", "kl_coef": 1.0}),
    "kl abs": ("", {}),
}
SCALE = {"ppo dual-clip c=3": -3.0, "kl k1": 0.0, "kl k2": 0.0, "kl k3": 0.0, "kl k3+ (k2 grad)": 0.0}
# As losses of their own these two are not offered by an objective; the estimators are checked below.
ESTIMATORS_ONLY = {"kl k1": "k1", "kl abs": "abs"}


def test_every_golden_objective_is_covered(golden):
    assert golden.objective_names == set(OBJECTIVES)


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - set(ESTIMATORS_ONLY)))
def test_loss_and_gradient_equal_the_golden_values(golden, name):
    preset, overrides = OBJECTIVES[name]
    inputs = golden.inputs
    logp = inputs["logp"].clone().requires_grad_()

    output = get_objective(preset, **overrides).loss(
        logp,
        logp_prox=inputs["logp_prox"],
        logp_behave=inputs["logp_behave"],
        logp_ref=inputs["logp_ref"],
        advantages=golden.advantages * SCALE.get(name, 1.0),
        mask=inputs["mask"],
        groups=inputs["groups"],
    )
    output.loss.backward()

    assert output.loss.item() == pytest.approx(golden[name, "loss"], abs=TOLERANCE)
    torch.testing.assert_close(logp.grad, golden[name, "grad"], atol=TOLERANCE, rtol=0)
    assert logp.grad.abs().sum().item() == pytest.approx(golden[name, "grad_l1"], abs=TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), sorted(ESTIMATORS_ONLY.items()))
def test_kl_estimators_outside_of_objectives_equal_the_golden_values(golden, name, kind):
    inputs = golden.inputs
    logp = inputs["logp"].clone().requires_grad_()
    weights = token_weights("token-mean", inputs["mask"], count(inputs["mask"]), dtype=torch.float64)

    loss = aggregate(kl.estimate(kind, logp, inputs["logp_ref"]), inputs["mask"], weights)
    loss.backward()

    assert loss.item() == pytest.approx(golden[name, "loss"], abs=TOLERANCE)
    torch.testing.assert_close(logp.grad, golden[name, "grad"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["ppo(.2,.2)/token-mean", "decoupled ppo + tis(1.2)", "sapo(1,1.05)/seq-mean"])
def test_float32_agrees_with_the_float64_goldens(golden, name):
    preset, overrides = OBJECTIVES[name]
    inputs = {key: value.float() if key != "groups" else value for key, value in golden.inputs.items()}
    logp = inputs["logp"].clone().requires_grad_()

    output = get_objective(preset, **overrides).loss(
        logp,
        logp_prox=inputs["logp_prox"],
        logp_behave=inputs["logp_behave"],
        advantages=golden.advantages.float(),
        mask=inputs["mask"],
    )
    output.loss.backward()

    assert output.loss.dtype == torch.float32
    assert output.loss.item() == pytest.approx(golden[name, "loss"], abs=1e-6)
    torch.testing.assert_close(logp.grad.double(), golden[name, "grad"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("m2po(.04)", {"correction": "m2po", "correction_high": 0.04}),
        ("m2po(.01)", {"correction": "m2po", "correction_high": 0.01}),
        ("kpop(.02)", {"correction": "kpop", "correction_high": 0.02}),
        ("geo[.95,1.05]", {"correction": "geometric", "correction_low": 0.95, "correction_high": 1.05}),
    ],
)
def test_correction_masks_equal_the_golden_masks(golden, name, overrides):
    inputs = golden.inputs
    expected = golden["masks", name]
    expected = (expected.unsqueeze(1) if expected.dim() == 1 else expected) * inputs["mask"]
    # REINFORCE has a gradient on every kept token, so that its support is the mask.
    logp = inputs["logp"].clone().requires_grad_()

    get_objective("ppo", surrogate="reinforce", **overrides).loss(
        logp,
        logp_prox=inputs["logp_prox"],
        logp_behave=inputs["logp_behave"],
        advantages=torch.ones_like(logp),
        mask=inputs["mask"],
    ).loss.backward()

    assert torch.equal(logp.grad != 0, expected > 0)


def test_the_golden_file_has_exactly_these_masks(golden):
    assert set(golden["masks"]) == {"m2po(.04)", "m2po(.01)", "kpop(.02)", "geo[.95,1.05]"}
