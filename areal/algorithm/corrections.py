"""What is done about the mismatch between the policy that sampled (behave) and the one the trainer recomputed (prox).

A correction yields a weight per token (1 unless it is an importance weight) and the tokens it keeps. Nothing here
carries a gradient. Inputs are [S, L] and finite; `mask` is nonzero on valid policy tokens. w = exp(logp_prox -
logp_behave). Formulas and defaults: `catalog.CORRECTIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from areal.algorithm.ratios import LOG_RATIO_LIMIT, bounded, sequence_mean
from areal.algorithm.surrogates import bernoulli_kl

if TYPE_CHECKING:
    from areal.algorithm.spec import ObjectiveSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Result of a correction, without gradient."""

    weight: Tensor
    """[S, L], factor of the loss on kept tokens; bounded by exp(20) or tighter."""
    keep: Tensor
    """bool [S, L], false where the correction drops a token."""
    clamped: Tensor
    """0-dim, how many sequence-level log-weights hit the overflow guard."""


def sequence_log_weight(log_weight: Tensor, mask: Tensor) -> Tensor:
    """Log of the product of w over the policy tokens, [S, 1], not bounded."""
    return (log_weight * (mask > 0)).sum(dim=1, keepdim=True)


def geometric_keep(log_weight: Tensor, mask: Tensor, *, low: float = 0.999, high: float = 1.001) -> Tensor:
    """bool [S, 1]: the geometric mean of w over the sequence lies in [low, high]."""
    mean = bounded(sequence_mean(log_weight, mask)).exp()
    return (mean >= low) & (mean <= high)


def kpop_keep(logp_behave: Tensor, logp_prox: Tensor, *, high: float = 2.0) -> Tensor:
    """bool [S, L]: both Bernoulli KL divergences between the policies are at most `high`."""
    forward, backward = bernoulli_kl(logp_behave, logp_prox), bernoulli_kl(logp_prox, logp_behave)
    return torch.maximum(forward, backward) <= high


def opsm_keep(logp: Tensor, logp_behave: Tensor, advantages: Tensor, mask: Tensor, *, high: float = 1e-4) -> Tensor:
    """bool [S, 1]: false where the sequence is worse than its baseline and has drifted, mean_t(l_behave - l) > high.

    The sign of a sequence is that of its mean advantage. Off-policy sequence mask of DeepSeek-V3.2.
    """
    worse = sequence_mean(advantages, mask) < 0
    return ~(worse & (sequence_mean(logp_behave - logp.detach(), mask) > high))


def second_moment_cut(log_weight: Tensor, mask: Tensor, *, high: float = 0.04) -> float:
    """Largest (log w)^2 that M2PO keeps: the most tokens, smallest first, whose mean (log w)^2 stays below `high`.

    Must see all tokens of the optimizer step, or the result depends on how the batch was cut. Tokens of equal size are
    kept or dropped together. Returns -1.0 when every token is dropped. M2PO, arXiv 2510.01161.
    """
    squares, _ = (log_weight[mask > 0] ** 2).sort()
    if squares.numel() == 0:
        return -1.0
    means = squares.double().cumsum(0) / torch.arange(
        1, squares.numel() + 1, dtype=torch.float64, device=squares.device
    )
    kept = int((means < high).sum())
    if kept == squares.numel():
        return float(squares[-1])
    if kept == 0:
        return -1.0
    # When the first dropped value equals the last kept one, step back to the next smaller value.
    below = squares[:kept][squares[:kept] < squares[kept]]
    return float(below[-1]) if below.numel() else -1.0


def correct(
    spec: ObjectiveSpec,
    *,
    logp_prox: Tensor,
    logp_behave: Tensor,
    mask: Tensor,
    cut: float | None = None,
    logp: Tensor | None = None,
    advantages: Tensor | None = None,
) -> Correction:
    """Weights and kept tokens under `spec`, including the decoupled weight.

    cut: of the whole step, required by m2po. logp, advantages: required by opsm; without logp only `keep` is meaningful
    for surrogate "reinforce", whose weight is pi / pi_behave: its loss has no ratio that leads from prox to the current
    policy.
    """
    with torch.no_grad():
        log_weight = logp_prox - logp_behave
        log_factor = logp - logp_behave if spec.surrogate == "reinforce" and logp is not None else log_weight
        weight, clamped = _importance_weight(spec, log_factor, mask)
        keep = _kept(spec, log_weight, mask, logp_prox=logp_prox, logp_behave=logp_behave, cut=cut)
        if spec.correction == "opsm":
            if logp is None or advantages is None:
                raise ValueError("correction 'opsm' needs the current policy and the advantages; neither was given")
            keep = opsm_keep(logp, logp_behave, advantages, mask, high=spec.parameter("correction_high"))
        return Correction(weight=weight, keep=keep.expand_as(log_weight), clamped=clamped)


def _importance_weight(spec: ObjectiveSpec, log_factor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Factor of the loss, [S, L], and how many sequence-level weights hit the overflow guard, 0-dim."""
    clamped = log_factor.new_zeros(())
    weighted = spec.correction in {"icepop", "mis", "seq_mask_tis", "tis"}
    if not (weighted or spec.decoupled):
        return torch.ones_like(log_factor), clamped
    if weighted and spec.parameter("correction_level") == "sequence":
        log_product = sequence_log_weight(log_factor, mask)
        clamped = (log_product.abs() > LOG_RATIO_LIMIT).sum().to(log_factor.dtype)
        log_factor = log_product.expand_as(log_factor)
    weight = bounded(log_factor).exp()
    if spec.correction == "tis":
        weight = weight.clamp(max=spec.parameter("correction_high"))
    elif spec.correction == "seq_mask_tis":
        weight = weight.clamp(max=spec.parameter("correction_cap"))
    return weight, clamped


def _kept(
    spec: ObjectiveSpec,
    log_weight: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor,
    logp_behave: Tensor,
    cut: float | None,
) -> Tensor:
    """What is kept, bool [S, L] or [S, 1], of the corrections that look at prox and behave only."""
    low, high = spec.parameter("correction_low"), spec.parameter("correction_high")
    if spec.correction == "m2po":
        if cut is None:
            raise ValueError(
                "correction 'm2po' needs the cut of the whole step: give logp_prox, logp_behave to denominators()"
            )
        return log_weight**2 <= cut
    if spec.correction == "kpop":
        return kpop_keep(logp_behave, logp_prox, high=high)
    if spec.correction in {"geometric", "seq_mask_tis"}:
        return geometric_keep(log_weight, mask, low=low, high=high)
    if spec.correction in {"icepop", "mis"}:
        per_sequence = spec.parameter("correction_level") == "sequence"
        weight = bounded(sequence_log_weight(log_weight, mask) if per_sequence else log_weight).exp()
        return (weight >= low) & (weight <= high)
    return torch.ones_like(log_weight, dtype=torch.bool)
