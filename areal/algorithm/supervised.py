"""Losses against known targets: cross-entropy of supervised fine-tuning, and the critic's value loss."""

from __future__ import annotations

import torch
from torch import Tensor

from areal.algorithm.aggregations import Denominators, TokenMean, aggregate, count
from areal.algorithm.tokens import check_shape, masked_mean, on_mask
from areal.api import LossOutput


def sft_loss(logp: Tensor, *, mask: Tensor, denominators: Denominators | None = None) -> LossOutput:
    """-(1/N) sum m logp: the token mean over the whole step.

    logp, mask: [S, L]; label smoothing is part of logp (`areal.engine.train`). denominators: of the whole step; None
    takes these sequences for it. Metrics: nll (negative log-likelihood per token).
    """
    check_shape("mask", mask, logp.shape)
    if denominators is None:
        denominators = count(mask)
    loss = -on_mask(logp, mask)
    metrics = {"nll": masked_mean(loss, mask, denominators.tokens)}
    return LossOutput(loss=_token_mean(loss, mask, denominators), metrics=metrics)


def value_loss(
    values: Tensor,
    *,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float | None = 0.5,
    denominators: Denominators | None = None,
) -> LossOutput:
    """1/2 max((V - ret)^2, (V_old + clip(V - V_old, -c, c) - ret)^2), token mean. PPO, arXiv 1707.06347.

    values: [S, L], with gradient. old_values: before the update. returns: targets. clip: c, in units of the return;
    None switches clipping off. denominators: of the whole step; None takes these sequences for the whole step.

    Metrics: value_clip_fraction, value_mean, return_mean, and the parts of explained variance: residual_square,
    return_square.
    """
    for name, tensor in {"old_values": old_values, "returns": returns, "mask": mask}.items():
        check_shape(name, tensor, values.shape)
    if denominators is None:
        denominators = count(mask)
    current, before, target = on_mask(values, mask), on_mask(old_values, mask).detach(), on_mask(returns, mask).detach()
    free = (current - target) ** 2
    bound = free if clip is None else (before + (current - before).clamp(-clip, clip) - target) ** 2
    tokens = denominators.tokens
    metrics = {
        "residual_square": masked_mean(free, mask, tokens),
        "return_mean": masked_mean(target, mask, tokens),
        "return_square": masked_mean(target**2, mask, tokens),
        "value_clip_fraction": masked_mean((bound > free).to(values.dtype), mask, tokens),
        "value_mean": masked_mean(current, mask, tokens),
    }
    return LossOutput(loss=_token_mean(0.5 * torch.maximum(free, bound), mask, denominators), metrics=metrics)


def _token_mean(loss: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
    tokens_S1 = (mask > 0).sum(dim=1, keepdim=True).to(loss.dtype)
    return aggregate(loss, mask, TokenMean().weights(tokens_S1, denominators))
