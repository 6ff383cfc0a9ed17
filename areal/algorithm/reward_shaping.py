"""Changes to rewards before advantages, as functions that return new tensors and leave their arguments alone."""

from __future__ import annotations

import torch
from torch import Tensor

from areal.api import ConfigError


def overlong_penalty(rewards: Tensor, lengths: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """R + clip((max_length - buffer - n) / buffer * factor, -factor, 0). Soft overlong punishment, DAPO, arXiv
    2503.14476.

    rewards: [S]. lengths: [S], n, policy tokens per answer. Nothing is taken up to max_length - buffer tokens, `factor`
    at max_length, and never more than `factor` beyond it.
    """
    if not 0 < buffer <= max_length:
        raise ConfigError(f"overlong penalty: buffer is {buffer}, expected 0 < buffer <= max_length {max_length}")
    if factor < 0:
        raise ConfigError(f"overlong penalty: factor is {factor}, expected >= 0 (it is subtracted)")
    dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    excess = (max_length - buffer - lengths.to(dtype)) / buffer * factor
    return rewards.to(dtype) + excess.clamp(min=-factor, max=0.0)


def overlong_filter(mask: Tensor, truncated: Tensor) -> Tensor:
    """`mask` [S, L] with truncated sequences (bool [S]) removed: they train nothing, but still count in their group's
    baseline.
    """
    return torch.where(truncated.bool().unsqueeze(1), torch.zeros_like(mask), mask)
