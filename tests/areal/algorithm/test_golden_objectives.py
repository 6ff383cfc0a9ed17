"""Every objective in the golden file: loss and each entry of the gradient, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from areal.algorithm import get_objective, kl
from areal.algorithm.aggregations import SequenceTokenSumNorm, TokenMean, aggregate, count
from areal.algorithm.corrections import M2PO, MIS, OPSM, TIS, GeometricMask, KPop
from areal.algorithm.kl import KL
from areal.algorithm.surrogates import DPPO, PPO

TOLERANCE = 1e-8
CLIP = {"clip_low": 0.2, "clip_high": 0.2}

# Golden name -> (preset, changes). Advantages are the golden ones, times the entry of SCALE where there is one.
OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo(.2,.2)/token-mean": ("ppo", {}),
    "ppo(.2,.2)/seq-mean-token-mean": ("grpo", {}),
    "ppo(.2,.2)/seq-mean-token-sum": ("ppo", {"aggregation": "seq-mean-token-sum"}),
    "ppo(.2,.2)/seq-mean-token-sum-norm": ("drgrpo", {"aggregation": SequenceTokenSumNorm(length_norm=7)}),
    "ppo(.2,.2)/prompt-mean": ("ppo", {"aggregation": "prompt-mean"}),
    "ppo clip-higher(.2,.28)": ("dapo", {}),
    "ppo dual-clip c=3": ("ppo", {"surrogate": PPO(dual_clip=3)}),
    "ppo dual-clip c=1.05": ("ppo", {"surrogate": PPO(dual_clip=1.05)}),
    "gspo-token(.2,.2)/seq-mean": ("gspo", {"surrogate": CLIP}),
    "gspo-seq(.2,.2)": ("gspo", {"surrogate": CLIP}),
    "gspo(.2,.2)/token-mean (AReaL-style agg)": (
        "gspo",
        {"surrogate": {**CLIP, "allow_length_weighting": True}, "aggregation": "token-mean"},
    ),
    "cispo(1,4)": ("cispo", {}),
    "cispo(.2,.2)": ("cispo", {"surrogate": CLIP}),
    "sapo(1,1.05)/seq-mean": ("sapo", {}),
    "sapo(1,1.05)/token-mean": ("sapo", {"aggregation": "token-mean"}),
    "dppo-tv(.1)": ("dppo", {"surrogate": {"low": 0.1, "high": 0.1}}),
    "dppo-kl(.004)": ("dppo", {"surrogate": DPPO(distance="kl", low=0.004, high=0.004)}),
    "reinforce": ("ppo", {"surrogate": "reinforce"}),
    "reinforce+tis(1.2)": ("ppo", {"surrogate": "reinforce", "correction": TIS(cap=1.2)}),
    "decoupled ppo, no cap": ("ppo", {"decoupled": True}),
    "decoupled ppo + tis(1.2)": ("ppo", {"decoupled": True, "correction": TIS(cap=1.2)}),
    "decoupled ppo + icepop(.8,1.2), denom=original": (
        "icepop",
        {"decoupled": True, "correction": {"low": 0.8, "high": 1.2}},
    ),
    "ppo + seq_is(1.1)": ("ppo", {"correction": TIS(level="sequence", cap=1.1)}),
    "ppo + seq_mis(1.2)": ("ppo", {"correction": MIS(high=1.2)}),
    "ppo + opsm(-10)": ("ppo", {"correction": OPSM(max_drift=-10)}),
    "kl k1": ("ppo", {"kl": KL(estimator="k1", coef=1.0, importance_weighted=True)}),
    "kl k2": ("ppo", {"kl": KL(estimator="k2", coef=1.0)}),
    "kl k3": ("ppo", {"kl": KL(estimator="k3", coef=1.0)}),
    "kl k3+ (k2 grad)": ("ppo", {"kl": KL(coef=1.0)}),
    "kl abs": ("", {}),
}
SCALE = {"ppo dual-clip c=3": -3.0, "kl k1": 0.0, "kl k2": 0.0, "kl k3": 0.0, "kl k3+ (k2 grad)": 0.0}
# As losses of their own these two are not offered by an objective; the estimators are checked below.
ESTIMATORS_ONLY = {"kl k1": "k1", "kl abs": "abs"}


def test_every_golden_objective_is_covered(golden):
    assert golden.objective_names == set(OBJECTIVES)


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - set(ESTIMATORS_ONLY)))
def test_loss_and_gradient_equal_the_golden_values(golden, name):
    preset, changes = OBJECTIVES[name]
    inputs = golden.inputs
    logp = inputs["logp"].clone().requires_grad_()

    output = get_objective(preset, **changes).loss(
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
    weights = TokenMean().weights(inputs["mask"].sum(1, keepdim=True), count(inputs["mask"]))

    loss = aggregate(kl.estimate(kind, logp, inputs["logp_ref"]), inputs["mask"], weights)
    loss.backward()

    assert loss.item() == pytest.approx(golden[name, "loss"], abs=TOLERANCE)
    torch.testing.assert_close(logp.grad, golden[name, "grad"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["ppo(.2,.2)/token-mean", "decoupled ppo + tis(1.2)", "sapo(1,1.05)/seq-mean"])
def test_float32_agrees_with_the_float64_goldens(golden, name):
    preset, changes = OBJECTIVES[name]
    inputs = {key: value.float() if key != "groups" else value for key, value in golden.inputs.items()}
    logp = inputs["logp"].clone().requires_grad_()

    output = get_objective(preset, **changes).loss(
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
    ("name", "correction"),
    [
        ("m2po(.04)", M2PO(max_second_moment=0.04)),
        ("m2po(.01)", M2PO(max_second_moment=0.01)),
        ("kpop(.02)", KPop(max_kl=0.02)),
        ("geo[.95,1.05]", GeometricMask(low=0.95, high=1.05)),
    ],
)
def test_correction_masks_equal_the_golden_masks(golden, name, correction):
    inputs = golden.inputs
    expected = golden["masks", name]
    expected = (expected.unsqueeze(1) if expected.dim() == 1 else expected) * inputs["mask"]
    # REINFORCE has a gradient on every kept token, so that its support is the mask.
    logp = inputs["logp"].clone().requires_grad_()

    get_objective("ppo", surrogate="reinforce", correction=correction).loss(
        logp,
        logp_prox=inputs["logp_prox"],
        logp_behave=inputs["logp_behave"],
        advantages=torch.ones_like(logp),
        mask=inputs["mask"],
    ).loss.backward()

    assert torch.equal(logp.grad != 0, expected > 0)


def test_the_golden_file_has_exactly_these_masks(golden):
    assert set(golden["masks"]) == {"m2po(.04)", "m2po(.01)", "kpop(.02)", "geo[.95,1.05]"}
