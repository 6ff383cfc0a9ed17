"""Log-ratios that cannot overflow: clamped to +-20, and every clamp counted. Not here: what is done with the ratios."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LOG_RATIO_LIMIT: Final = 20.0
"""exp(20) is 4.9e8: far outside any trust region, far inside float32."""


def bounded(log_ratio: Tensor) -> Tensor:
    """Clamp to +-LOG_RATIO_LIMIT; beyond the limit the gradient is 0."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def count_clamped(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Number of tokens on the mask whose log-ratio `bounded` would change, 0-dim."""
    return ((log_ratio.abs() > LOG_RATIO_LIMIT) & (mask > 0)).sum()


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens on the mask, [S, 1]; 0 for a sequence without any. Values off the mask must be finite."""
    keep = (mask > 0).to(values.dtype)
    return (values * keep).sum(dim=1, keepdim=True) / keep.sum(dim=1, keepdim=True).clamp(min=1.0)


def as_bool(mask: Tensor) -> Tensor:
    """The mask as bool, without a copy when it is one."""
    return mask if mask.dtype == torch.bool else mask > 0


def on_mask(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 off the mask: whatever was there (NaN, inf) reaches neither the result nor the gradient."""
    return values.masked_fill(~as_bool(mask), 0.0)
