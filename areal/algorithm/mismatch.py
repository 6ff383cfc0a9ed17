"""How far the policy that sampled differs from the one that is trained, before anything is learnt from a batch.

Two causes come together in a batch: the sampler computes otherwise than the trainer (other kernels, other dtypes), and
tokens were sampled by older weights. `fresh` tokens, those of the trainer's present version, show the first cause
alone.

Values are partial sums (see `metrics`): those of the parts of a batch add up, "_max" by maximum; `summary` is for the
whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from areal.algorithm.metrics import masked_max, masked_mean
from areal.algorithm.ratios import bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

PREFIX = "sampler_"


def partial_sums(
    logp: Tensor, logp_behave: Tensor, *, mask: Tensor, fresh: Tensor, num_tokens: float, num_fresh: float
) -> dict[str, Tensor]:
    """Sums over some sequences of a batch, divided by the counts of the whole batch.

    logp, logp_behave: [S, L], of the trainer before the update and at sampling time. mask: [S, L], nonzero on sampled
    tokens. fresh: bool [S, L], tokens sampled by the trainer's present version.
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


def summary(sums: Mapping[str, float]) -> dict[str, float]:
    """Numbers for the log, from the sums of a whole batch: differences of log-probabilities in nats; effective sample
    size, 1 when sampler and trainer agree, towards 0 as few tokens carry all the importance weight."""
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
