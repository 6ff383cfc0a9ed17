"""Per-token policy losses: PPO with clip-higher and dual clip, GSPO, CISPO, SAPO, DPPO, REINFORCE.

Each function takes [S, L] tensors that are finite everywhere (the objective zeroes masked positions first) and returns
the loss per token, before correction weights and aggregation. `log_ratio` is logp minus the anchor's logp, already
bounded; it carries the gradient. Formulas, papers and defaults: `catalog.SURROGATES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from areal.algorithm.ratios import bounded, sequence_mean

if TYPE_CHECKING:
    from areal.algorithm.spec import ObjectiveSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Loss of each token and which tokens a bound acted on."""

    loss: Tensor
    """[S, L], with gradient."""
    clipped: Tensor
    """bool [S, L]: the trust region removed or bounded the token's gradient."""
    dual_clipped: Tensor
    """bool [S, L]: the dual clip replaced the loss."""


def ppo(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); with dual_clip = c > 1 at most -c A where A < 0.

    PPO, arXiv 1707.06347. Clip-higher (clip_high 0.28): DAPO, arXiv 2503.14476. Dual clip: arXiv 1912.09729.
    """
    ratio = log_ratio.exp()
    free, bound = -advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(free, bound)
    clipped = bound > free
    dual_clipped = torch.zeros_like(clipped)
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        dual_clipped = (advantages < 0) & (loss > ceiling)
        loss = torch.where(advantages < 0, torch.minimum(loss, ceiling), loss)
    return TokenLoss(loss=loss, clipped=clipped, dual_clipped=dual_clipped)


def gspo(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float = 3e-4, clip_high: float = 4e-4
) -> TokenLoss:
    """PPO on the length-normalised sequence ratio s_i = exp(mean_t log r), in the token form sg[s_i] pi / sg[pi].

    Value and gradient equal the sequence form when A is constant over the sequence; otherwise each token keeps its own
    A. GSPO, arXiv 2507.18071; its bounds are three orders of magnitude tighter than PPO's.
    """
    sequence_S1 = sequence_mean(log_ratio.detach(), mask)
    return ppo(sequence_S1 + log_ratio - log_ratio.detach(), advantages, clip_low=clip_low, clip_high=clip_high)


def cispo(
    log_ratio: Tensor, logp: Tensor, advantages: Tensor, *, clip_low: float = 1.0, clip_high: float = 4.0
) -> TokenLoss:
    """-sg[clip(r, 1 - clip_low, 1 + clip_high)] A logp: every token keeps a gradient. MiniMax-M1, arXiv 2506.13585."""
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return TokenLoss(
        loss=-weight * advantages * logp, clipped=weight != ratio, dual_clipped=torch.zeros_like(ratio).bool()
    )


def sapo(log_ratio: Tensor, advantages: Tensor, *, sapo_tau_pos: float = 1.0, sapo_tau_neg: float = 1.05) -> TokenLoss:
    """-A sigmoid(tau (r - 1)) 4 / tau: a soft gate whose gradient at r = 1 is exactly -A grad logp. SAPO, arXiv
    2511.20347.
    """
    tau = torch.where(
        advantages > 0, torch.full_like(advantages, sapo_tau_pos), torch.full_like(advantages, sapo_tau_neg)
    )
    loss = -advantages * torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * 4.0 / tau
    nothing = torch.zeros_like(loss).bool()
    return TokenLoss(loss=loss, clipped=nothing, dual_clipped=nothing)


def dppo(
    log_ratio: Tensor,
    logp: Tensor,
    logp_behave: Tensor,
    advantages: Tensor,
    *,
    dppo_kind: str = "tv",
    dppo_low: float = 0.2,
    dppo_high: float = 0.2,
) -> TokenLoss:
    """-keep r A with r = pi / mu against the behaviour policy mu; keep drops tokens that already moved too far the
    wanted way.

    dppo_kind "tv": distance |pi - mu| of the token's probability; "kl": KL of the two Bernoulli distributions "this
    token or not", KL(mu, pi). Dropped where A > 0, pi > mu and distance > dppo_high, or A < 0, pi < mu and distance >
    dppo_low. DPPO, arXiv 2602.04879.
    """
    with torch.no_grad():
        moved = logp.exp() - logp_behave.exp()
        distance = moved.abs() if dppo_kind == "tv" else bernoulli_kl(logp_behave, logp)
        too_high = (advantages > 0) & (moved > 0) & (distance > dppo_high)
        too_low = (advantages < 0) & (moved < 0) & (distance > dppo_low)
        dropped = too_high | too_low
    loss = torch.where(dropped, torch.zeros_like(log_ratio), -log_ratio.exp() * advantages)
    return TokenLoss(loss=loss, clipped=dropped, dual_clipped=torch.zeros_like(dropped))


def reinforce(logp: Tensor, advantages: Tensor) -> TokenLoss:
    """-A logp."""
    nothing = torch.zeros_like(logp).bool()
    return TokenLoss(loss=-advantages * logp, clipped=nothing, dual_clipped=nothing)


def bernoulli_kl(logp_first: Tensor, logp_second: Tensor) -> Tensor:
    """KL between the two-outcome distributions (this token, any other) of two policies; finite also for logp 0 or
    slightly above.
    """
    # The complement's logarithm log(1 - p) is -inf at p = 1; 1e-7 keeps it finite and is below float32 resolution of p.
    first, second = logp_first.clamp(max=-1e-7), logp_second.clamp(max=-1e-7)
    other_first, other_second = (-torch.expm1(first)).log(), (-torch.expm1(second)).log()
    return first.exp() * (first - second) + other_first.exp() * (other_first - other_second)


def per_token(
    spec: ObjectiveSpec, *, logp: Tensor, logp_anchor: Tensor, logp_behave: Tensor, advantages: Tensor, mask: Tensor
) -> TokenLoss:
    """The surrogate that `spec` names, on tensors that are 0 off the mask; log-ratios are bounded here."""
    log_ratio = bounded(logp - logp_anchor)
    low_high = {name: spec.parameter(name) for name in ("clip_low", "clip_high")}
    if spec.surrogate == "ppo":
        return ppo(log_ratio, advantages, dual_clip=spec.dual_clip, **low_high)
    if spec.surrogate == "gspo":
        return gspo(log_ratio, advantages, mask, **low_high)
    if spec.surrogate == "cispo":
        return cispo(log_ratio, logp, advantages, **low_high)
    if spec.surrogate == "sapo":
        taus = {name: spec.parameter(name) for name in ("sapo_tau_pos", "sapo_tau_neg")}
        return sapo(log_ratio, advantages, **taus)
    if spec.surrogate == "dppo":
        region = {name: spec.parameter(name) for name in ("dppo_kind", "dppo_low", "dppo_high")}
        return dppo(log_ratio, logp, logp_behave, advantages, **region)
    return reinforce(logp, advantages)
