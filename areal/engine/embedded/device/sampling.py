"""Draws tokens without a cumulated sum of the whole vocabulary in float64.

The inverse of the distribution function is taken in two levels: among sums of blocks of the vocabulary, then within the
block. All sums are in float64, as in `areal.engine.embedded.sequence.sample`, but only one block of a row is cumulated:
of 256 rows and 151,936 tokens 1 MB instead of 311 MB. Accelerators for consumers compute in float64 at 1/64 of their
rate, so that most of the work has to stay in float32.

Example: probabilities 0.1 0.2 | 0.3 0.4 in blocks of two, and 0.55: the blocks sum to 0.3 and 1.0, so it is in the
second one, at 0.25 of its own; there the sums are 0.3 and 0.7, so it is the first token, number 2.

Shape letters: N rows, V vocabulary, B tokens of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from areal.engine.embedded.sequence import SamplingRows, processed_logits

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_BLOCK: Final = 512
_SMALLEST_BLOCK: Final = 64


def draw(
    logits: Tensor, settings: SamplingRows, uniform: Tensor | None, forbidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token per row, without reading anything from the device.

    logits: [N, V] of any float dtype. settings: with the greedy rows; top_k and top_p only where a row has a filter.
    uniform: float64 [N] in (0, 1); None where all rows are greedy. forbidden: int64 [N, S], tokens that have no
    probability; a number below 0 or beyond V - 1 stands for none. Returns (tokens int64 [N], log-probabilities float32
    [N]) as `areal.engine.embedded.sequence.sample` does: equal, but for numbers that fall between two roundings of one
    sum in float64.
    """
    logits = logits.float()
    if forbidden is not None:
        logits = _without(logits, forbidden)
    logits = processed_logits(logits, settings)
    logprobs = torch.log_softmax(logits, dim=-1)
    if uniform is None:
        tokens = logits.argmax(dim=-1)
    else:
        tokens = invert(logprobs.exp(), uniform)
        if settings.greedy is not None:
            tokens = torch.where(settings.greedy, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """First token whose cumulated probability exceeds uniform * total; never one of probability 0.

    probabilities: float32 [N, V], at least 0. uniform: float64 [N] in (0, 1). Returns int64 [N] from 0 to V - 1; which
    one means nothing where a row has NaN.
    """
    vocabulary = probabilities.shape[1]
    # A power of two that divides the vocabulary, so that nothing is copied: 128 for 151,936 tokens.
    size = vocabulary & -vocabulary
    if size < _SMALLEST_BLOCK:
        size, probabilities = _LARGEST_BLOCK, functional.pad(probabilities, (0, -vocabulary % _LARGEST_BLOCK))
    size = min(size, _LARGEST_BLOCK)
    blocks = probabilities.unflatten(1, (-1, size))
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniform[:, None] * sums[:, -1:]
    block = _first_above(sums, target)
    before = sums.gather(1, (block - 1).clamp_min(0)).masked_fill(block == 0, 0.0)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, size))[:, 0].cumsum(-1, dtype=torch.float64)
    tokens = block * size + _first_above(inside, target - before)
    return tokens[:, 0].clamp_max(vocabulary - 1)


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """int64 [N, 1]: the first of sums [N, K] above target [N, 1], at most the first that equals the last one: what
    rounding pushes beyond all of them falls to the last one that adds something."""
    sums = sums.contiguous()
    found = torch.searchsorted(sums, target.contiguous(), right=True)
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(found, last).clamp_max(sums.shape[1] - 1)


def _without(logits: Tensor, forbidden: Tensor) -> Tensor:
    """Logits with -inf for forbidden tokens. A minimum, since what stands for no token is a place as well."""
    is_real = (forbidden >= 0) & (forbidden < logits.shape[1])
    most = logits.new_full(forbidden.shape, float("inf")).masked_fill(is_real, float("-inf"))
    return logits.scatter_reduce(1, forbidden.masked_fill(~is_real, 0), most, "amin")
