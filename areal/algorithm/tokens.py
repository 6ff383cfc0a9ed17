"""Sums, means and ratios over the policy tokens of padded [S, L] tensors, and metrics made of them.

Log-ratios are clamped to +-20, so that they cannot overflow, and every clamp is counted. Every metric is a partial sum
over the denominators of the whole step (see `areal.api.LossOutput`), so `combine` adds those of micro-batches up.
Importing this module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.api import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import Tensor


LOG_RATIO_LIMIT: Final = 20.0
"""exp(20) is 4.9e8: far outside any trust region, far inside float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """What surrogates and corrections compute from: [S, L] each, finite, 0 off `mask`. Only `logp` has a gradient."""

    logp: Tensor
    """Log-probability under the policy that is trained."""
    logp_prox: Tensor
    """The same policy before the update."""
    logp_behave: Tensor
    """The policy that sampled."""
    logp_anchor: Tensor
    """The one of the two that importance ratios are taken against."""
    advantages: Tensor
    """Advantage of each token."""
    mask: Tensor
    """bool: tokens that the policy sampled and whose fixed log-probabilities are finite."""
    step_threshold: float | None = None
    """What `Correction.step_threshold` found in the whole optimizer step."""

    @property
    def log_ratio(self) -> Tensor:
        """logp - logp_anchor, bounded, with gradient."""
        return bounded(self.logp - self.logp_anchor)


def bounded(log_ratio: Tensor) -> Tensor:
    """Clamp to +-LOG_RATIO_LIMIT; beyond the limit the gradient is 0."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def count_clamped(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return the number of tokens on the mask whose log-ratio `bounded` would change, 0-dim."""
    return ((log_ratio.abs() > LOG_RATIO_LIMIT) & (mask > 0)).sum()


def on_mask(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 off the mask: whatever was there (NaN, inf) reaches neither the result nor the gradient."""
    import torch

    return values.masked_fill(~(mask if mask.dtype == torch.bool else mask > 0), 0.0)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens on the mask, [S, 1]; 0 for a sequence without any. Values off the mask must be finite."""
    keep = (mask > 0).to(values.dtype)
    return (values * keep).sum(dim=1, keepdim=True) / keep.sum(dim=1, keepdim=True).clamp(min=1.0)


def masked_mean(values: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Sum over the mask divided by a count of the whole step, 0-dim, detached, float32 or better: parts add up."""
    import torch

    wide = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    return on_mask(wide, mask).sum() / max(denominator, 1.0)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Largest value on the mask, at least 0 (so that an all-masked part never decides), 0-dim, detached."""
    chosen = on_mask(values.detach(), mask)
    return chosen.max().clamp(min=0.0) if chosen.numel() else chosen.sum()


def bernoulli_kl(logp_first: Tensor, logp_second: Tensor) -> Tensor:
    """KL between the two-outcome distributions (this token, any other) of two policies; finite also for logp 0 or
    slightly above.
    """
    import torch

    # The complement's logarithm log(1 - p) is -inf at p = 1; 1e-7 keeps it finite and is below float32 resolution of p.
    first, second = logp_first.clamp(max=-1e-7), logp_second.clamp(max=-1e-7)
    other_first, other_second = (-torch.expm1(first)).log(), (-torch.expm1(second)).log()
    return first.exp() * (first - second) + other_first.exp() * (other_first - other_second)


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...] | torch.Size) -> None:
    """Broadcasting by accident would train on the wrong thing; say which tensor has which shape instead."""
    if tuple(tensor.shape) != tuple(expected):
        raise DataError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}")


SAMPLER_PREFIX = "sampler_"


def combine(parts: Iterable[Mapping[str, float | Tensor]]) -> dict[str, float]:
    """Return the metrics of the whole from those of its parts: sums, but the maximum of "_max" and minimum of "_min".

    Keys that end in "_count" are plain counts, which nothing divides, so they add up too.
    """
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
    finite = (mask > 0) & logp.detach().isfinite() & logp_behave.isfinite()
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
        "sampler_fresh_fraction": masked_mean(difference.new_ones(difference.shape), recent, num_tokens),
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
