"""Turn logits into tokens and exact log-probabilities. Pure functions on tensors: no state, no global random generator.

The *processed* distribution of a row is softmax(filter(logits / temperature)): temperature first, then top-k, then
top-p on what top-k left, each renormalised. A greedy row has temperature 1 and no filter. The log-probability of a
token is the one under the processed distribution, in float32.

Randomness is counter-based: number i of a request is a function of (seed, i) alone, so neither the other rows of a
batch nor an interruption changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def seed_state(seed: int) -> int:
    """Mix any integer into 64 bits, so that neighbouring seeds give unrelated streams."""
    mixed = _mix(np.array([(seed + _GOLDEN) & _MASK], dtype=np.uint64))
    return int(mixed[0])


def uniforms(states: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw number `counters[r]` of stream `states[r]`, uniform in the open interval (0, 1); SplitMix64 by counter.

    52 bits plus a half: both ends stay out of reach after rounding to float64, so an inverse CDF never leaves its
    support.
    """
    offsets = (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    bits = _mix(states + offsets) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Sampling settings of the rows of a batch; None where no row needs the step."""

    temperature: Tensor | None = None
    """float32 [N, 1]."""
    top_k: Tensor | None = None
    """int64 [N, 1]; 0 keeps all. Given together with top_p."""
    top_p: Tensor | None = None
    """float64 [N, 1]; 1 keeps all."""
    greedy: Tensor | None = None
    """bool [N]."""
    all_greedy: bool = False
    """No row samples: random numbers are not looked at."""


def processed_logits(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Logits [N, vocab] of any float dtype to float32 logits whose softmax is the processed distribution."""
    logits = logits.float()
    if rows.temperature is not None:
        logits = logits / rows.temperature
    if rows.top_k is not None and rows.top_p is not None:
        logits = _filter(logits, rows.top_k, rows.top_p)
    return logits


def sample(logits: Tensor, rows: SamplingRows, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    logits: [N, vocab]. uniform: float64 [N] in (0, 1). Returns (tokens int64 [N], log-probabilities float32 [N]); a
    row whose logits contain NaN or +inf has a log-probability that is not finite, and a meaningless token.
    """
    logits = processed_logits(logits, rows)
    logprobs = torch.log_softmax(logits, dim=-1)
    if rows.all_greedy:
        tokens = logits.argmax(dim=-1)
    else:
        tokens = _invert(logprobs, uniform)
        if rows.greedy is not None:
            tokens = torch.where(rows.greedy, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """First token whose cumulated probability exceeds uniform * total: a token of probability 0 is never the first."""
    cumulated = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    target = uniform * cumulated[:, -1]
    tokens = torch.searchsorted(cumulated, target[:, None], right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[1] - 1)


def _filter(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Remove what top-k, then top-p exclude. Equal logits rank by token id, so the kept set is always well defined."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    drop_k = (rank >= top_k) & (top_k > 0)
    probabilities = torch.softmax(ordered.masked_fill(drop_k, float("-inf")), dim=-1, dtype=torch.float64)
    before = probabilities.cumsum(dim=-1) - probabilities
    # Without a limit nothing is dropped, even where rounding makes the cumulated sum reach 1 early; the best token
    # stays.
    drop_p = (before >= top_p) & (top_p < 1) & (rank > 0)
    drop = torch.zeros_like(drop_k).scatter_(1, order, drop_k | drop_p)
    return logits.masked_fill(drop, float("-inf"))
