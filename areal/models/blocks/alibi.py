"""Attention with linear biases (ALiBi, arXiv 2108.12409): scores fall with the distance of query and key."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@functools.lru_cache(maxsize=64)
def alibi_slopes(num_heads: int, factor: float, device: torch.device) -> Tensor:
    """Return the slope of each head times `factor`: float32 [num_heads]. The same tensor for the same arguments.

    A power of two of heads has the geometric series from 2^(-8/n) on; other numbers take the series of the power below,
    and then every second slope of the power above, as the paper's code does.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = _series(power) + _series(2 * power)[::2][: num_heads - power]
    # float64 first, so that the series does not gather rounding errors; not on the meta device, nor under autograd's
    # inference mode, since models of all kinds share the tensor.
    with torch.device("cpu"), torch.inference_mode(mode=False):
        return (torch.tensor(slopes, dtype=torch.float64) * factor).to(device, torch.float32)


def _series(num_heads: int) -> list[float]:
    return [2 ** (-8 * (head + 1) / num_heads) for head in range(num_heads)]
