"""Numbers about sampled answers: pass@k, majority vote, bootstrap intervals, and a comparison of two models.

A row has n samples with rewards; everything is computed per row first, and rows are what is resampled: samples of one
row are not independent, so an interval that took them for independent would be too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
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


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the chance that one of `k` samples passes: 1 - C(n - c, k) / C(n, k), without bias (Chen et al. 2021,
    arXiv 2107.03374, equation 1).

    Raises ValueError unless 1 <= k <= num_samples and 0 <= num_passed <= num_samples.
    """
    if not (1 <= k <= num_samples and 0 <= num_passed <= num_samples):
        raise ValueError(
            f"pass@{k} of {num_passed} passed in {num_samples} samples: expected 1 <= k <= samples and 0 <= passed "
            f"<= samples"
        )
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def majority_at_k(answers: Sequence[str | None], rewards: Sequence[float], k: int) -> float:
    """Return the expected reward of the answer that most of `k` samples give, drawn from these without replacement.

    Exact: every draw is counted, none is simulated. Answers with equally many votes share the vote. A sample without
    answer (None) abstains; where all `k` abstain, the value is their mean reward. The reward of an answer is the mean
    over all samples that gave it.

    Raises ValueError unless there are as many rewards as answers and 1 <= k <= their number.
    """
    if len(answers) != len(rewards) or not 1 <= k <= len(answers):
        raise ValueError(f"maj@{k} of {len(answers)} answers with {len(rewards)} rewards: expected 1 <= k <= samples")
    votes: dict[str, list[float]] = {}
    abstained: list[float] = []
    for answer, reward in zip(answers, rewards, strict=True):
        (abstained if answer is None else votes.setdefault(answer, [])).append(reward)
    counts = sorted(map(len, votes.values()))
    total = math.comb(len(answers), k)
    value = 0.0
    for group in votes.values():
        others = list(counts)
        others.remove(len(group))
        value += _wins(len(group), tuple(others), len(abstained), k) / total * (sum(group) / len(group))
    if len(abstained) >= k:
        value += math.comb(len(abstained), k) / total * (sum(abstained) / len(abstained))
    return value


@lru_cache(maxsize=65536)
def _wins(own: int, others: tuple[int, ...], abstained: int, k: int) -> float:
    """Count the draws of `k` in which an answer with `own` votes wins, a tie of m answers as 1/m of a draw."""
    found = 0.0
    for drawn in range(1, min(own, k) + 1):
        rest = k - drawn
        # ways[x][t]: draws of x votes for other answers, none with more than `drawn` and t with as many.
        ways: list[dict[int, int]] = [{} for _ in range(rest + 1)]
        ways[0][0] = 1
        for count in others:
            following: list[dict[int, int]] = [{} for _ in range(rest + 1)]
            for taken, by_ties in enumerate(ways):
                for votes in range(min(count, drawn, rest - taken) + 1):
                    chosen = math.comb(count, votes)
                    target = following[taken + votes]
                    for ties, number in by_ties.items():
                        now = ties + (votes == drawn)
                        target[now] = target.get(now, 0) + number * chosen
            ways = following
        draws = sum(
            number * math.comb(abstained, rest - taken) / (ties + 1)
            for taken, by_ties in enumerate(ways)
            for ties, number in by_ties.items()
        )
        found += math.comb(own, drawn) * draws
    return found


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
