"""Measures how heads turn with their position, on queries before and after: pairs, frequencies, magnitude.

Nothing is assumed about where frequencies come from; `rotary.py` explains what is measured here.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

CHANGE = 5e-6
"""A dimension is rotated if some position changes it by more than this, in units of its standard deviation."""
RESIDUAL = 2e-4
"""What a rotation may leave unexplained of a pair, in units of the pair's length."""


@dataclass(frozen=True)
class Turning:
    """Pair j of dimensions (real[j], imaginary[j]) turns by position * frequencies[j]."""

    real: Tensor
    imaginary: Tensor
    frequencies: Tensor
    """float64 [pairs], radians per position."""
    precision: float
    """How far off frequencies may be."""
    magnitude: float
    """Length of rotated pairs over what it was, relative to that of dimensions that are not rotated where there are
    some."""
    relative: bool
    """Whether there are such dimensions, so that `magnitude` is the rotation's own."""
    growth: Tensor | None = None
    """float64 [T]: factor on whole heads by position, relative to the first one; None where it is 1 everywhere."""
    residual: float = 0.0
    """What the pairs leave unexplained, over the tolerance."""
    rejected: float | None = None
    """What the best other usual pairing leaves, over the tolerance; None where there is none."""


def measure(before: Tensor, after: Tensor, *, where: str) -> Turning | None:
    """Explain after [B, T, H, D] as a rotation of before by position, of no pairs where heads only grow; None if
    positions change nothing.

    Raises UnsupportedError for changes that are no rotation by an angle proportional to the position.

    Example: heads of 24 dimensions, theta 10000. Dimensions 0 and 12 as one complex number, after over before, have the
    angles 0, 1, 2, 3, ... over the positions (1 radian per position), 1 and 13 the angles 0, 0.464, 0.928, ...; that
    these are proportional to the position, and that lengths stay the same, confirms the pairing of halves. Pairing 0
    with 1 leaves a residual far above the tolerance (`rejected`), as it should for GPT-NeoX rotations.
    """
    before, after = before.double(), after.double()
    # What positions make of the length of whole heads, where it is the same in all of them: no rotation does that.
    ratio = after.norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-30)
    ratio = ratio / ratio[:, :1].mean((0, 2), keepdim=True)
    by_position = ratio.mean((0, 2))
    alike = float((ratio / by_position[:, None] - 1).abs().max()) <= RESIDUAL
    growth = by_position if alike and float((by_position - 1).abs().max()) > RESIDUAL else None
    if growth is not None:
        after = after / growth[:, None, None]
    factor = (before[:, 0] * after[:, 0]).sum((0, 1)) / before[:, 0].square().sum((0, 1))
    change = (after - before * factor).abs().amax((0, 1, 2)) / after.std((0, 1, 2)).clamp_min(1e-30)
    turned = (change > CHANGE).nonzero().flatten()
    if not len(turned):
        if growth is None:
            return None
        none = torch.empty(0, dtype=torch.long)
        return Turning(none, none, torch.empty(0).double(), precision=0.0, magnitude=1.0, relative=False, growth=growth)
    width = before.shape[-1]
    # Of more dimensions than were seen to turn: over few positions slow pairs are not.
    halves = (torch.arange(half) for half in range(int(turned.max()) // 2 + 1, width // 2))
    longer = ((half, half + len(half)) for half in halves)
    for real, imaginary in itertools.chain(_hypotheses(turned, width), longer):
        ratio, residual = _turn(before, after, real, imaginary)
        if residual < RESIDUAL:
            break
    else:
        real, imaginary = _search(before, after, turned, where)
        ratio, residual = _turn(before, after, real, imaginary)
        if residual >= RESIDUAL:
            raise UnsupportedError(
                "a position encoding inside attention",
                where=where,
                detail=f"no pairing of dimensions {turned.tolist()} makes it a rotation (residual {residual:.1e})",
            )
    magnitude = ratio.abs()
    if float((magnitude / magnitude[:1] - 1).abs().max()) > RESIDUAL:
        raise UnsupportedError(
            "queries or keys scaled by position", where=where, detail="the length of rotated pairs changes by position"
        )
    frequencies = _frequencies(ratio.angle(), where)
    if float(frequencies.sum()) < 0:  # the other sense of rotation is the same table with the parts exchanged
        real, imaginary, frequencies = imaginary, real, -frequencies
    rest = [index for index in range(before.shape[-1]) if index not in {*real.tolist(), *imaginary.tolist()}]
    base = float(factor[rest].mean()) if rest else 1.0
    return Turning(
        real,
        imaginary,
        frequencies,
        precision=4e-6 / before.shape[1],
        magnitude=float(magnitude.mean()) / base,
        relative=bool(rest),
        growth=growth,
        residual=residual / RESIDUAL,
        rejected=_rejected(before, after, turned, {*zip(real.tolist(), imaginary.tolist(), strict=True)}),
    )


def _rejected(before: Tensor, after: Tensor, turned: Tensor, pairs: set[tuple[int, int]]) -> float | None:
    """Return what the best usual pairing other than `pairs` leaves unexplained, over the tolerance."""
    others = [
        _turn(before, after, real, imaginary)[1] / RESIDUAL
        for real, imaginary in _hypotheses(turned, before.shape[-1])
        if not pairs & {*zip(real.tolist(), imaginary.tolist(), strict=True)}
        and not pairs & {*zip(imaginary.tolist(), real.tolist(), strict=True)}
    ]
    return min(others, default=None)


def _hypotheses(turned: Tensor, width: int) -> list[tuple[Tensor, Tensor]]:
    """Return the pairings to try, the usual ones first: all dimensions, or those that visibly change."""
    found = []
    everything = torch.arange(width)
    spans = [turned] if len(turned) == width else [turned, everything]
    first = torch.arange(int(turned.max()) + 1)
    spans += [span for span in (first,) if len(span) not in {len(other) for other in spans}]
    for span in spans:
        if len(span) % 2 == 0:
            half = len(span) // 2
            found += [(span[:half], span[half:]), (span[::2], span[1::2])]
    return found


def _turn(before: Tensor, after: Tensor, real: Tensor, imaginary: Tensor) -> tuple[Tensor, float]:
    """Return the complex factor [T, pairs] from before to after, and what it leaves unexplained."""
    given = torch.complex(before[..., real], before[..., imaginary])
    turned = torch.complex(after[..., real], after[..., imaginary])
    ratio = (given.conj() * turned).sum((0, 2)) / given.abs().square().sum((0, 2)).clamp_min(1e-30)
    left = (turned - given * ratio[None, :, None]).abs().amax((0, 1, 2))
    scale = turned.abs().square().mean((0, 1, 2)).sqrt().clamp_min(1e-30)
    return ratio, float((left / scale).max())


def _search(before: Tensor, after: Tensor, turned: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Find each dimension's partner: after[d] is a combination of before[d] and before[partner] at position 1."""
    given, result = before[:, 1].flatten(0, 1), after[:, 1].flatten(0, 1)
    partners: dict[int, tuple[int, float]] = {}
    for dimension in turned.tolist():
        best = (math.inf, -1, 0.0)
        for other in turned.tolist():
            if other != dimension:
                basis = given[:, [dimension, other]]
                solution = torch.linalg.lstsq(basis, result[:, dimension, None]).solution
                error = float((basis @ solution - result[:, dimension, None]).norm())
                best = min(best, (error, other, float(solution[1])))
        partners[dimension] = best[1:]
    real = [d for d, (other, sine) in partners.items() if sine < 0 and partners[other][0] == d]
    if 2 * len(real) != len(turned):
        raise UnsupportedError(
            "a position encoding inside attention", where=where, detail="rotated dimensions do not form pairs"
        )
    return torch.tensor(real), torch.tensor([partners[d][0] for d in real])


def _frequencies(angles: Tensor, where: str) -> Tensor:
    """Return the slope of angles [T, pairs] over positions, each known modulo a full turn."""
    length = angles.shape[0]
    position = 1
    slope = angles[1].clone()
    while position < length:
        slope += _wrap(angles[position] - slope * position) / position
        position = min(2 * position, length - 1) if position < length - 1 else length
    line = torch.arange(length, dtype=angles.dtype)[:, None] * slope
    if float(_wrap(angles - line).abs().max()) > RESIDUAL:
        raise UnsupportedError(
            "rotation angles that are not proportional to the position", where=where, detail="measured on the trace"
        )
    return slope


def _wrap(angle: Tensor) -> Tensor:
    """To [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
