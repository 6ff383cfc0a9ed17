"""The critic's loss. Not here: its targets (`areal.algorithm.gae`)."""

from __future__ import annotations

import torch
from torch import Tensor

from areal.algorithm import metrics as metric_functions
from areal.algorithm.aggregate import Denominators, aggregate, check_shape, count, token_weights
from areal.algorithm.ratios import on_mask
from areal.api import LossOutput


def value_loss(
    values: Tensor,
    *,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float | None = 0.5,
    aggregation: str = "token-mean",
    groups: Tensor | None = None,
    denominators: Denominators | None = None,
) -> LossOutput:
    """1/2 max((V - ret)^2, (V_old + clip(V - V_old, -c, c) - ret)^2), aggregated. PPO, arXiv 1707.06347.

    values: [S, L], with gradient. old_values: before the update. returns: targets. clip: c, in units of the return;
    None switches clipping off. denominators: of the whole step; None takes these sequences for the whole step.

    Metrics: value_clip_fraction, value_mean, return_mean, and the parts of explained variance: residual_square,
    return_square.
    """
    for name, tensor in {"old_values": old_values, "returns": returns, "mask": mask}.items():
        check_shape(name, tensor, values.shape)
    if denominators is None:
        denominators = count(mask, groups)
    current, before, target = on_mask(values, mask), on_mask(old_values, mask).detach(), on_mask(returns, mask).detach()
    free = (current - target) ** 2
    bound = free if clip is None else (before + (current - before).clamp(-clip, clip) - target) ** 2
    weights = token_weights(aggregation, mask, denominators, groups=groups, dtype=values.dtype)
    tokens = denominators.tokens
    metrics = {
        "residual_square": metric_functions.masked_mean(free, mask, tokens),
        "return_mean": metric_functions.masked_mean(target, mask, tokens),
        "return_square": metric_functions.masked_mean(target**2, mask, tokens),
        "value_clip_fraction": metric_functions.masked_mean((bound > free).to(values.dtype), mask, tokens),
        "value_mean": metric_functions.masked_mean(current, mask, tokens),
    }
    return LossOutput(loss=aggregate(0.5 * torch.maximum(free, bound), mask, weights), metrics=metrics)
