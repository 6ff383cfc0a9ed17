"""Metrics that add up over the parts of a batch, and how far sampler and trainer differ.

Every value is a partial sum over the denominators of the whole step (see `areal.api.LossOutput`): values of
micro-batches are added; keys ending in "_max" combine by maximum, "_min" by minimum. Keys ending in "_count" are plain
counts (nothing divides them), so they add up too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.algorithm.tokens import bounded, masked_max, masked_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

SAMPLER_PREFIX = "sampler_"


def combine(parts: Iterable[Mapping[str, float | Tensor]]) -> dict[str, float]:
    """Return the metrics of the whole from the metrics of its parts."""
    whole: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            number = float(value)
            if name not in whole:
                whole[name] = number
            elif name.endswith("_max"):
                whole[name] = max(whole[name], number)
            elif name.endswith("_min"):
                whole[name] = min(whole[name], number)
            else:
                whole[name] += number
    return whole


def sampler_mismatch(
    logp: Tensor, logp_behave: Tensor, *, mask: Tensor, fresh: Tensor, num_tokens: float, num_fresh: float
) -> dict[str, Tensor]:
    """Measure how the policy that sampled differs from the one that is trained, as sums over some sequences of a batch.

    Two causes come together: the sampler computes otherwise than the trainer (other kernels, other dtypes), and tokens
    were sampled by older weights. `fresh` tokens, those of the trainer's present version, show the first cause alone.

    logp, logp_behave: [S, L], of the trainer before the update and at sampling time. mask: [S, L], nonzero on sampled
    tokens. fresh: bool [S, L]. num_tokens, num_fresh: counts of the whole batch, which divide the sums.
    """
    finite = (mask > 0) & torch.isfinite(logp.detach()) & torch.isfinite(logp_behave)
    difference = (logp.detach() - logp_behave).masked_fill(~finite, 0.0)
    weight = bounded(difference).exp()
    recent = finite & fresh
    return {
        "sampler_abs_diff": masked_mean(difference.abs(), finite, num_tokens),
        "sampler_abs_diff_max": masked_max(difference.abs(), finite),
        "sampler_weight": masked_mean(weight, finite, num_tokens),
        "sampler_weight_square": masked_mean(weight**2, finite, num_tokens),
        "sampler_fresh_abs_diff": masked_mean(difference.abs(), recent, num_fresh),
        "sampler_fresh_abs_diff_max": masked_max(difference.abs(), recent),
        "sampler_fresh_fraction": masked_mean(torch.ones_like(difference), recent, num_tokens),
    }


def mismatch_summary(sums: Mapping[str, float]) -> dict[str, float]:
    """Numbers for the log from the `sampler_mismatch` of a whole batch.

    Differences of log-probabilities are in nats; the effective sample size is 1 when sampler and trainer agree, towards
    0 as few tokens carry all the importance weight.
    """
    square = sums["sampler_weight_square"]
    found = {
        "abs_mean": sums["sampler_abs_diff"],
        "abs_max": sums["sampler_abs_diff_max"],
        "effective_sample_size": sums["sampler_weight"] ** 2 / square if square > 0 else 0.0,
        "fresh_fraction": sums["sampler_fresh_fraction"],
    }
    if sums["sampler_fresh_fraction"] > 0:
        found |= {
            "fresh_abs_mean": sums["sampler_fresh_abs_diff"],
            "fresh_abs_max": sums["sampler_fresh_abs_diff_max"],
        }
    return found
