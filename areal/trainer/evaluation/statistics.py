"""Numbers about scores of rows: bootstrap intervals, and a comparison of two models.

A row has n samples with rewards; everything is computed per row first, and rows are what is resampled: samples of one
row are not independent, so an interval that took them for independent would be too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES: Final = 4000
LEVEL: Final = 0.95
"""Share of the bootstrap distribution that an interval covers."""
EXACT_FLIPS: Final = 14
"""Up to so many rows that differ, the permutation test goes through all 2^rows signs."""
PERMUTATIONS: Final = 20_000
_CHUNK: Final = 2_000_000
"""Numbers that are drawn at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over rows."""

    mean: float
    """NaN without rows."""
    low: float
    """Lower end of the 95 % interval; NaN with fewer than two rows."""
    high: float
    rows: int
    """Rows that count: those with enough samples."""


def estimate(values: Sequence[float], *, seed: int) -> Estimate:
    """Return the mean of rows with its percentile interval from a bootstrap over rows (Efron 1979); NaN values are left
    out. The same values and seed give the same interval.
    """
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return Estimate(mean=math.nan, low=math.nan, high=math.nan, rows=0)
    low, high = _interval(known, seed) if len(known) > 1 else (math.nan, math.nan)
    return Estimate(mean=float(known.mean()), low=low, high=high, rows=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """How a second model does on rows that a first one did too: second minus first."""

    rows: int
    """Rows that both have a value for."""
    first: float
    second: float
    difference: float
    low: float
    """Lower end of the 95 % interval of the difference; NaN with fewer than two rows."""
    high: float
    better: int
    """Rows on which the second is better."""
    worse: int
    p_permutation: float
    """Two-sided p-value of the mean difference when signs of rows are exchanged at random."""
    p_sign: float
    """Two-sided p-value of the sign test: how lopsided `better` against `worse` is."""


def compare(first: Sequence[float], second: Sequence[float], *, seed: int) -> PairedDifference:
    """Compare values of the same rows; rows that one of them has no value for (NaN) are left out.

    Raises ValueError when the lengths differ, or no row is left.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} rows against {len(second)}: expected the same rows on both sides")
    pairs = np.array([pair for pair in zip(first, second, strict=True) if not any(map(math.isnan, pair))])
    if not len(pairs):
        raise ValueError("no row has a value on both sides; nothing to compare")
    differences = pairs[:, 1] - pairs[:, 0]
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    low, high = _interval(differences, seed) if len(differences) > 1 else (math.nan, math.nan)
    return PairedDifference(
        rows=len(pairs),
        first=float(pairs[:, 0].mean()),
        second=float(pairs[:, 1].mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        better=better,
        worse=worse,
        p_permutation=_permutation_test(differences, seed),
        p_sign=_sign_test(better, worse),
    )


def _interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    left, at_once = RESAMPLES, max(1, _CHUNK // len(values))
    while left:
        size = min(left, at_once)
        means.append(values[generator.integers(0, len(values), (size, len(values)))].mean(axis=1))
        left -= size
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _permutation_test(differences: np.ndarray, seed: int) -> float:
    """Exact for few rows; else random signs, with the observed ones among them (Phipson and Smyth 2010)."""
    moved = np.abs(differences[differences != 0])
    if not len(moved):
        return 1.0
    # A tolerance, so that the order of additions does not decide whether a draw is as extreme as the observed one.
    limit = abs(float(differences.sum())) * (1 - 1e-12) - 1e-12
    if len(moved) <= EXACT_FLIPS:
        sums = np.zeros(1)
        for value in moved:
            sums = np.concatenate([sums + value, sums - value])
        return float((np.abs(sums) >= limit).mean())
    generator = np.random.default_rng([seed, 1])
    hits, left, at_once = 1, PERMUTATIONS, max(1, _CHUNK // len(moved))
    while left:
        size = min(left, at_once)
        signs = generator.integers(0, 2, (size, len(moved))) * 2 - 1
        hits += int((np.abs(signs @ moved) >= limit).sum())
        left -= size
    return hits / (PERMUTATIONS + 1)


def _sign_test(better: int, worse: int) -> float:
    """Exact, two-sided; ties are left out."""
    number, fewer = better + worse, min(better, worse)
    tail = sum(math.comb(number, index) for index in range(fewer + 1))
    return min(1.0, 2 * tail / 2**number)
