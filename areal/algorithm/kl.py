"""Per-token estimates of the distance to the reference policy, and where each may be used.

On-policy, as a *loss* on sampled tokens: k1 has zero expected gradient, k2 that of KL(pi, ref), k3 that of KL(ref, pi);
multiplied by pi / sg[pi] both k1 and k3 have that of KL(pi, ref). As a *reward* only k1 is right. `ObjectiveSpec`
refuses the wrong places; the tests hold all of these against exact enumeration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.algorithm import catalog
from areal.algorithm.ratios import bounded, on_mask

if TYPE_CHECKING:
    from torch import Tensor


def estimate(kind: str, logp: Tensor, logp_ref: Tensor, *, importance_weighted: bool = False) -> Tensor:
    """Estimate per token, same shape as logp, with gradient through logp.

    kind: a key of `catalog.KL_KINDS`. importance_weighted: multiply by pi / sg[pi], value unchanged. The log-ratio is
    clamped to +-20 where it is exponentiated or squared. Raises ConfigError for an unknown kind.
    """
    catalog.lookup("kl", kind, catalog.KL_KINDS)
    difference = bounded(logp - logp_ref)
    if kind == "k1":
        value = difference
    elif kind == "abs":
        value = difference.abs()
    elif kind == "k2":
        value = 0.5 * difference**2
    else:
        value = (-difference).exp() - 1.0 + difference
        if kind == "k3_straight_through":
            squared = 0.5 * difference**2
            value = squared + (value - squared).detach()
    if importance_weighted:
        value = value * (logp - logp.detach()).exp()
    return value


def reward_penalty(logp: Tensor, logp_ref: Tensor, *, mask: Tensor, coef: float) -> Tensor:
    """-coef k1 per token, [S, L], 0 off the mask, without gradient: the KL part of the token rewards.

    logp: of the policy whose expectation is taken, normally logp_prox (before the update).
    """
    return -coef * estimate("k1", on_mask(logp, mask), on_mask(logp_ref, mask)).detach()


def adaptive_coef(coef: float, *, measured: float, target: float, num_samples: int, horizon: int = 10_000) -> float:
    """Coefficient for the next step: coef (1 + clip(measured / target - 1, -0.2, 0.2) num_samples / horizon), arXiv
    1909.08593.
    """
    if target <= 0 or horizon <= 0:
        raise ValueError(f"adaptive kl coefficient: target {target} and horizon {horizon} must be positive")
    return coef * (1.0 + min(max(measured / target - 1.0, -0.2), 0.2) * num_samples / horizon)
