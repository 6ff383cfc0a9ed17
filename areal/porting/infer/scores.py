"""Explains attention scores by query-key products: masks, scale, softcap, ALiBi, sinks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from areal.models.blocks.alibi import alibi_slopes
from areal.porting.records import FeatureEvidence, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn


SINK_TOLERANCE = 1e-3
SAME_NUMBER = 3e-6
"""Relative difference up to which a measured number is a known one."""
SCORE_TOLERANCE = 5e-5
"""Of the largest visible score."""


@dataclass(frozen=True)
class ScoreRule:
    """scores = softcap * tanh(scale * product / softcap) - alibi * slope[head] * distance."""

    scale: float
    softcap: float | None = None
    alibi: float | None = None
    margin: float | None = None
    """Error without softcap or ALiBi over the tolerance, where there is one."""
    error: float = 0.0
    """Largest difference of a score over the tolerance."""
    other: tuple[float, float] | None = None
    """The next best scale that numbers of the config make, and its error over the tolerance."""

    def evidence(self) -> FeatureEvidence:
        """Return the line on the scale."""
        detail = f"factor between products and scores, off by {self.error:.1e} of the tolerance"
        if self.other is not None:
            detail += f"; next best: {self.other[0]:.9g}"
        margin = None if self.other is None else self.other[1]
        return FeatureEvidence(
            feature="attention.scale", value=f"{self.scale:.9g}", source="probe", detail=detail, margin=margin
        )


def explain_scores(
    product: Tensor, scores: Tensor, visible: Tensor, *, hints: Iterable[float], where: str
) -> ScoreRule:
    """Explain the scores by the products. product: query-key products [B, H, T, T]; scores: what went into the softmax,
    up to a constant per row.

    Raises UnsupportedError for scores that are neither scaled nor capped products, with linear biases or without.

    Example: granite has products p and scores s with s = 0.2 p wherever a key is visible. The measured factor
    0.20000001 is snapped to attention_multiplier 0.2 of the config; the next best hint, 24 ** -0.5 = 0.2041, is off by
    525 times the tolerance, which is the margin in the checklist. Gemma's s = 50 tanh(p / (50 sqrt(d))) is found by
    solving for the cap; Bloom's s = p / sqrt(d) - slope * distance by least squares over products and distances.
    """
    product, scores = product.double(), scores.double()
    hints = [hint for hint in hints if hint > 0]
    # Masks of -inf times zero are no number.
    largest = float(torch.where(visible, scores, 0.0).abs().amax()) or 1.0
    tolerance = SCORE_TOLERANCE * largest
    p = torch.where(visible, product - product.diagonal(dim1=-2, dim2=-1)[..., None], 0.0)
    s = torch.where(visible, scores - scores.diagonal(dim1=-2, dim2=-1)[..., None], 0.0)
    scale = float((p * s).sum() / p.square().sum())
    plain = float((s - scale * p).abs().max())
    reach = float(p.abs().max()) / tolerance
    if plain <= tolerance:
        return ScoreRule(snap(scale, hints), error=plain / tolerance, other=_next_best(scale, hints, reach))
    length = product.shape[-1]
    position = torch.arange(length, dtype=torch.float64)
    distance = (position[:, None] - position[None, :]) * visible
    slopes = alibi_slopes(product.shape[1], 1.0, product.device).double()
    # What each head's least squares says the common factor on its slope is, if heads agree.
    factors = []
    for head in range(p.shape[1]):
        basis = torch.stack([p[:, head].flatten(), distance[:, head].flatten()], 1)
        solution = torch.linalg.lstsq(basis, s[:, head].flatten()[:, None]).solution
        factors.append(-float(solution[1]) / float(slopes[head]))
    mean = sum(factors) / len(factors)
    for factor in [mean] if all(abs(factor / mean - 1) < 1e-3 for factor in factors) and mean > 0 else []:
        bias = factor * slopes[:, None, None] * distance
        left = s + bias
        scale = float((p * left).sum() / p.square().sum())
        off = float((left - scale * p).abs().max()) / tolerance
        if off <= 1:
            other = _next_best(scale, hints, reach)
            scale = snap(scale, hints)
            alibi = snap(factor, [scale, 1.0, 2.0, *hints])
            return ScoreRule(scale, alibi=alibi, margin=plain / tolerance, error=off, other=other)
    raw, seen = product[visible], scores[visible]
    for cap in _caps(raw, seen, hints):
        linear = torch.atanh((seen / cap).clamp(-1 + 1e-12, 1 - 1e-12)) * cap
        weight = 1 - (seen / cap).square()
        scale = float((raw * linear * weight).sum() / (raw.square() * weight).sum())
        off = float((cap * torch.tanh(scale * raw / cap) - seen).abs().max()) / tolerance
        if off <= 1:
            reach = float((raw * weight).abs().max()) / tolerance
            other = _next_best(scale, hints, reach)
            return ScoreRule(snap(scale, hints), softcap=cap, margin=plain / tolerance, error=off, other=other)
    raise UnsupportedError(
        "attention scores",
        where=where,
        detail=f"scores are no scaled query-key products (off by {plain / largest:.1e} of the largest), with neither a "
        "softcap nor ALiBi",
    )


def snap(value: float, hints: Iterable[float]) -> float:
    """Return the simplest number that explains a measured one: a hint, its inverse or (inverse) root, or few digits."""
    for known in _made_of(hints):
        if abs(known / value - 1) < SAME_NUMBER:
            return known
    for digits in (1, 2, 3, 4):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded / value - 1) < SAME_NUMBER:
            return rounded
    return value


def _made_of(hints: Iterable[float]) -> Iterator[float]:
    for hint in hints:
        yield from (hint, 1 / hint, hint**-0.5, hint**0.5)


def _next_best(scale: float, hints: Iterable[float], reach: float) -> tuple[float, float] | None:
    """Return the nearest other scale that hints make, and its error: reach is the largest product over the
    tolerance."""
    others = [known for known in _made_of(hints) if abs(known / scale - 1) >= SAME_NUMBER]
    nearest = min(others, key=lambda known: abs(known - scale), default=None)
    return None if nearest is None else (nearest, abs(nearest - scale) * reach)


def numbers_of(module: nn.Module, config: Mapping[str, Any]) -> list[float]:
    """Return the numbers that constants inside the module may be made of: its own attributes first, then the config."""
    own = [value for value in vars(module).values() if isinstance(value, int | float) and not isinstance(value, bool)]
    return [float(value) for value in (*own, *_flat(config)) if value > 0 and math.isfinite(value)]


def sinks_beside(product: Tensor, scores: Tensor, rule: ScoreRule, *, where: str) -> Tensor | None:
    """Return the sink of each head [H] in scores [B, H, T, K] of T keys: a last column that is the same in every row,
    once a constant that was taken off a whole row (its maximum) is put back."""
    length = product.shape[-1]
    if scores.shape[-1] == length:
        return None
    if scores.shape[-1] != length + 1 or rule.alibi is not None:
        raise UnsupportedError(
            "attention over extra keys", where=where, detail=f"{scores.shape[-1]} scores for {length} tokens"
        )
    own = product.diagonal(dim1=-2, dim2=-1) * rule.scale
    if rule.softcap is not None:
        own = rule.softcap * torch.tanh(own / rule.softcap)
    sinks = scores[..., -1] + own - scores.diagonal(dim1=-2, dim2=-1)
    if float((sinks - sinks[:1, :, :1]).abs().max()) > SINK_TOLERANCE:
        raise UnsupportedError("attention over extra keys", where=where, detail="the last score depends on the token")
    return sinks.mean((0, 2))


def sinks_after(scores: Tensor, ratio: Tensor) -> Tensor | None:
    """Return the sinks [H] applied as a factor sigmoid(logsumexp(scores) - sink); ratio: that factor [B, H, T], if it
    is one."""
    if not bool(((ratio > 0) & (ratio < 1)).all()):
        return None
    sinks = scores.double().logsumexp(-1) - torch.logit(ratio.double())
    spread = float((sinks - sinks[:1, :, :1]).abs().max())
    return sinks.median(2).values.median(0).values.float() if spread < 1e-3 else None


def _flat(config: Mapping[str, Any]) -> Iterable[float]:
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


def _caps(raw: Tensor, seen: Tensor, hints: list[float]) -> list[float]:
    """Return the caps to try: numbers of the config above every score, then the best fit."""
    largest = float(seen.abs().max())
    caps = [hint for hint in dict.fromkeys(hints) if hint > largest]

    def misfit(cap: float) -> float:
        linear = torch.atanh((seen / cap).clamp(-1 + 1e-12, 1 - 1e-12)) * cap
        weight = 1 - (seen / cap).square()
        scale = (raw * linear * weight).sum() / (raw.square() * weight).sum()
        return float((cap * torch.tanh(scale * raw / cap) - seen).square().sum())

    low, high = math.log(largest * (1 + 1e-9)), math.log(largest * 1e3)
    for _ in range(80):
        first, second = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, second) if misfit(math.exp(first)) < misfit(math.exp(second)) else (first, high)
    fitted = math.exp((low + high) / 2)
    return [*caps, *(float(f"{fitted:.{digits}g}") for digits in (1, 2, 3, 4)), fitted]


# ---------------------------------------------------------------------------------------------------------------- masks

# Which keys a query sees, read off the masked entries of attention scores.


MASKED_BELOW = -1e4
"""Scores below are masked: additive masks are the dtype's minimum or -inf."""


def visible_keys(scores: Tensor) -> Tensor:
    """Return bool [B, H, Q, K]: whether the key has any weight in the softmax."""
    return scores > MASKED_BELOW


def window_and_chunk(visible: Tensor, *, where: str) -> tuple[int | None, int | None]:
    """Explain a mask [B, H, T, T] as causal, with a window or with chunks. Raises UnsupportedError for others."""
    pattern = visible[0, 0]
    if not torch.equal(visible, pattern.expand_as(visible)):
        raise UnsupportedError(
            "visibility that depends on the data or the head", where=where, detail="masks differ across rows or heads"
        )
    length = pattern.shape[0]
    position = torch.arange(length)
    query, key = position[:, None], position[None, :]
    causal = key <= query
    if torch.equal(pattern, causal):
        return None, None
    if bool((pattern & ~causal).any()):
        raise UnsupportedError("attention that is not causal", where=where, detail="queries see keys after them")
    window = int(pattern[-1].sum())
    if torch.equal(pattern, causal & (key > query - window)):
        return window, None
    hidden = (pattern[:, 0] & causal[:, 0]).logical_not().nonzero()
    chunk = int(hidden[0]) if len(hidden) else length
    if torch.equal(pattern, causal & (key // chunk == query // chunk)):
        return None, chunk
    raise UnsupportedError(
        "an attention mask", where=where, detail="visible keys are neither causal, nor a window, nor chunks"
    )
