"""Learning from pairs: DPO, conservative DPO, IPO on policies, Bradley-Terry on scores.

The per-pair functions take one number per answer; `preference_loss` makes those numbers from padded log-probabilities
and explicit pairs of row indices. A micro-batch must hold both rows of a pair (`packing.split_groups` by pair id keeps
them together). Log-probabilities are summed in float64: a difference of sums over thousands of tokens loses its sign in
float32.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from areal.algorithm import catalog
from areal.algorithm.aggregate import check_shape
from areal.algorithm.ratios import on_mask
from areal.api import ConfigError, DataError, LossOutput

PREFERENCE_LOSSES: Final[frozenset[str]] = frozenset({"cdpo", "dpo", "ipo"})


def dpo(chosen: Tensor, rejected: Tensor, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d), d = chosen - rejected, per pair. arXiv 2305.18290.

    chosen, rejected: [P], log pi - log pi_ref summed over the answer's tokens. label_smoothing: e, the chance that a
    label is swapped (conservative DPO); 0 <= e < 0.5.
    """
    if not 0.0 <= label_smoothing < 0.5:
        raise ConfigError(f"dpo: label_smoothing is {label_smoothing}, expected 0 <= label_smoothing < 0.5")
    margin = beta * (chosen - rejected)
    return -(1.0 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def cdpo(chosen: Tensor, rejected: Tensor, *, beta: float = 0.1, label_smoothing: float = 0.1) -> Tensor:
    """Conservative DPO: `dpo` with label smoothing."""
    return dpo(chosen, rejected, beta=beta, label_smoothing=label_smoothing)


def ipo(chosen: Tensor, rejected: Tensor, *, beta: float = 0.1) -> Tensor:
    """(chosen - rejected - 1 / (2 beta))^2 per pair. arXiv 2310.12036.

    chosen, rejected: [P], log pi - log pi_ref of the answers, averaged over their tokens (the authors' reading) or
    summed.
    """
    return (chosen - rejected - 1.0 / (2.0 * beta)) ** 2


def bradley_terry(chosen: Tensor, rejected: Tensor, *, margin: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(s_chosen - s_rejected - margin) per pair of reward-model scores."""
    return -logsigmoid(chosen - rejected - margin)


def sequence_logp(logp: Tensor, mask: Tensor, *, average: bool = False) -> Tensor:
    """Sum (or mean) of logp over the mask per row, float64 [S]."""
    total = on_mask(logp, mask).double().sum(dim=1)
    return total / (mask > 0).sum(dim=1).clamp(min=1) if average else total


def preference_loss(
    kind: Literal["cdpo", "dpo", "ipo"],
    logp: Tensor,
    *,
    logp_ref: Tensor,
    mask: Tensor,
    pairs: Tensor,
    beta: float = 0.1,
    label_smoothing: float | None = None,
    length_normalised: bool | None = None,
    num_pairs: float | None = None,
) -> LossOutput:
    """Mean preference loss over the pairs of the step.

    logp, logp_ref, mask: [S, L], mask nonzero on answer tokens. pairs: int [P, 2], rows of (chosen, rejected). beta:
    inverse temperature > 0. label_smoothing: cdpo only (default 0.1). length_normalised: average instead of sum over
    tokens; default True for ipo, False otherwise. num_pairs: of the whole step; None takes these pairs for the whole
    step.

    Metrics: accuracy (chosen preferred), margin, reward_chosen, reward_rejected (beta times log-ratio).
    """
    if kind not in PREFERENCE_LOSSES:
        raise ConfigError(catalog.nearest("preference loss", kind, PREFERENCE_LOSSES))
    if not beta > 0:
        raise ConfigError(f"preference loss: beta is {beta}, expected > 0")
    if label_smoothing is not None and kind != "cdpo":
        raise ConfigError(f"preference loss: label_smoothing has no effect with {kind!r}; use 'cdpo'")
    check_shape("logp_ref", logp_ref, logp.shape)
    check_shape("mask", mask, logp.shape)
    rows = _checked_pairs(pairs, logp.shape[0])
    average = kind == "ipo" if length_normalised is None else length_normalised
    ratios = sequence_logp(logp, mask, average=average) - sequence_logp(logp_ref, mask, average=average).detach()
    chosen, rejected = ratios[rows[:, 0]], ratios[rows[:, 1]]
    if kind == "ipo":
        losses = ipo(chosen, rejected, beta=beta)
    else:
        smoothing = (0.1 if label_smoothing is None else label_smoothing) if kind == "cdpo" else 0.0
        losses = dpo(chosen, rejected, beta=beta, label_smoothing=smoothing)
    denominator = max(float(rows.shape[0]) if num_pairs is None else num_pairs, 1.0)
    rewards = {"reward_chosen": beta * chosen.detach(), "reward_rejected": beta * rejected.detach()}
    metrics = {
        "accuracy": (chosen > rejected).sum().to(ratios.dtype) / denominator,
        "margin": (rewards["reward_chosen"] - rewards["reward_rejected"]).sum() / denominator,
        **{name: value.sum() / denominator for name, value in rewards.items()},
    }
    # Rows without a pair keep the graph connected: an empty part contributes exactly 0.
    loss = losses.sum() / denominator + 0.0 * ratios.sum()
    return LossOutput(loss=loss.to(logp.dtype), metrics=metrics)


def bradley_terry_loss(
    scores: Tensor, *, pairs: Tensor, margin: float = 0.0, num_pairs: float | None = None
) -> LossOutput:
    """Mean Bradley-Terry loss over the pairs of the step; scores: [S], one per row, pairs: int [P, 2] of (chosen,
    rejected).
    """
    rows = _checked_pairs(pairs, scores.shape[0])
    chosen, rejected = scores[rows[:, 0]], scores[rows[:, 1]]
    denominator = max(float(rows.shape[0]) if num_pairs is None else num_pairs, 1.0)
    metrics = {
        "accuracy": (chosen > rejected).sum().to(scores.dtype) / denominator,
        "margin": (chosen - rejected).detach().sum() / denominator,
    }
    loss = bradley_terry(chosen, rejected, margin=margin).sum() / denominator + 0.0 * scores.sum()
    return LossOutput(loss=loss, metrics=metrics)


def _checked_pairs(pairs: Tensor, num_rows: int) -> Tensor:
    """Pairs as int64 [P, 2]; a row paired with itself or out of range is refused."""
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise DataError(
            f"pairs is {pairs.dtype} of shape {tuple(pairs.shape)}, expected int [pairs, 2] of (chosen row, rejected "
            f"row)"
        )
    rows = pairs.to(torch.int64)
    if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= num_rows or bool((rows[:, 0] == rows[:, 1]).any())):
        raise DataError(f"pairs {rows.tolist()[:8]} name rows outside 0..{num_rows - 1}, or pair a row with itself")
    return rows
