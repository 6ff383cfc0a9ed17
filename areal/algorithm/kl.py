"""Per-token estimates of the distance to the reference policy, and where each may be used.

On-policy, as a *loss* on sampled tokens: k1 has zero expected gradient, k2 that of KL(pi, ref), k3 that of KL(ref, pi);
multiplied by pi / sg[pi] both k1 and k3 have that of KL(pi, ref). As a *reward* only k1 is right. The tests hold all of
these against exact enumeration. Importing this module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from areal.algorithm.blocks import check_fields
from areal.algorithm.tokens import bounded, on_mask
from areal.api import Config, ConfigError, number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KL(Config):
    """Distance to the reference policy: how it is estimated, how much it counts, and where."""

    formula: ClassVar[str] = (
        "k1: l - l_ref; k2: (l - l_ref)^2 / 2; k3: exp(l_ref - l) - 1 - (l_ref - l); k3_straight_through: value of k3, "
        "gradient of k2"
    )
    source: ClassVar[str] = "http://joschu.net/blog/kl-approx.html; k3 as a loss: GRPO, arXiv 2402.03300"
    estimator: Literal["k1", "k2", "k3", "k3_straight_through"] = "k3_straight_through"
    """Estimate per token. As a loss, k2 and k3_straight_through have the gradient of KL(pi, ref), k3 (the GRPO paper's)
    that of KL(ref, pi); in the reward only k1 is right."""
    coef: float = number(0.0, at_least=0)
    """Weight of the distance; >= 0, 0 needs no reference model."""
    place: Literal["loss", "reward"] = "loss"
    """"loss" adds it to the loss; "reward" subtracts it from the rewards of the tokens, k1 only."""
    importance_weighted: bool = False
    """Multiply the loss term by pi / sg[pi], which makes the gradient of k1 and k3 that of KL(pi, ref)."""

    def __post_init__(self) -> None:
        """Refuse estimators that are right in the reward and wrong in the loss, or the other way round."""
        check_fields(self, "kl")
        if self.place == "reward" and self.estimator != "k1":
            raise ConfigError(
                f"kl.estimator {self.estimator!r} in the reward has the gradient of no KL divergence (only k1 is "
                f"unbiased there); use kl.estimator: k1, or kl.place: loss"
            )
        if self.place == "reward" and self.importance_weighted:
            raise ConfigError("kl.importance_weighted has no effect with kl.place 'reward'; remove it")
        if self.place == "loss" and self.estimator == "k1" and not self.importance_weighted:
            raise ConfigError(
                "kl.estimator k1 as a loss has zero expected gradient; use k2 or k3_straight_through (gradient of "
                "KL(pi, ref)), kl.importance_weighted: true, or kl.place: reward"
            )

    def token_loss(self, logp: Tensor, logp_ref: Tensor) -> Tensor:
        """Estimate per token, [S, L], with gradient through logp."""
        return estimate(self.estimator, logp, logp_ref, importance_weighted=self.importance_weighted)

    def token_penalty(self, logp: Tensor, logp_ref: Tensor, *, mask: Tensor) -> Tensor:
        """-coef k1 per token, [S, L], 0 off the mask, without gradient: the KL part of the token rewards.

        logp: of the policy whose expectation is taken, normally logp_prox (before the update).
        """
        return -self.coef * estimate("k1", on_mask(logp, mask), on_mask(logp_ref, mask)).detach()


def estimate(kind: str, logp: Tensor, logp_ref: Tensor, *, importance_weighted: bool = False) -> Tensor:
    """Estimate per token, same shape as logp, with gradient through logp.

    kind: one of `KL.estimator`, or "abs" for reports. importance_weighted: multiply by pi / sg[pi], value unchanged.
    The log-ratio is clamped to +-20 where it is exponentiated or squared.
    """
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
