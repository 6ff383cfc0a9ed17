"""Rotation of one attention module: measured on queries and keys, confirmed at other lengths, explained as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from areal.porting.infer import rotary as tables
from areal.porting.infer.growth import explain_growth
from areal.porting.infer.rotation import CHANGE, Turning, measure
from areal.porting.records import Evidence, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.porting.infer.view import View
    from areal.porting.spec import RotarySpec


UNSEEN = 10 * CHANGE
"""Radians over the whole trace that a pair may turn without being seen to."""
SAME_FREQUENCY = 1e-5


@dataclass(frozen=True)
class Explained:
    """The rotation of a module's heads."""

    rotary: RotarySpec | None
    order: Tensor
    """Dimensions of a head such that rotated ones stand first, in the layout of the table."""
    evidence: tuple[Evidence, ...]


def explain_turning(before: dict[str, Tensor], after: dict[str, Tensor], view: View) -> Explained:
    """before and after: "q" and "k", [B, T, H, D] around the rotation, dimensions in the order of their rows."""
    width = before["q"].shape[-1]
    query = measure(before["q"], after["q"], where=view.name)
    key = measure(before["k"], after["k"], where=view.name)
    if query is None and key is None:
        evidence = Evidence(
            feature="attention.rotary",
            value="none",
            source="probe",
            detail=f"positions change no query or key of {view.name}",
        )
        return Explained(None, torch.arange(width), (evidence,))
    if query is None or key is None:
        raise _unshared(view, f"positions turn {'keys' if query is None else 'queries'} only")
    if key.growth is not None:
        raise UnsupportedError("keys scaled by position", where=view.name, detail="the length of keys changes")
    query = shared_turning(query, key, view)
    order, interleaved, dim = arrange(query, width)
    spec, evidence_of_table = tables.explain(
        [tables.Measured(view.run.length, in_order(query, order, interleaved))],
        dim=dim,
        interleaved=interleaved,
        config=view.context.config,
        model=view.context.model,
        head_dim=width,
        key_magnitude=key.magnitude,
        where=view.name,
    )
    pairs = Evidence(
        feature="attention.rotary_pairs",
        value="neighbours" if interleaved else "halves",
        source="probe",
        detail=f"queries of {view.name} turn by position, off by {query.residual:.1e} of the tolerance",
        margin=query.rejected,
    )
    if query.growth is None:
        return Explained(spec, order, (*evidence_of_table, pairs))
    factor, length, evidence = explain_growth(query.growth, view)
    spec = replace(spec, query_growth=factor, growth_length=length)
    return Explained(spec, order, (*evidence_of_table, pairs, evidence))


def arrange(turning: Turning, width: int) -> tuple[Tensor, bool, int]:
    """Order of dimensions that a table can say, whether it pairs neighbours, and how many dimensions it rotates."""
    real, imaginary = turning.real, turning.imaginary
    count = len(real)
    rest = [index for index in range(width) if index not in {*real.tolist(), *imaginary.tolist()}]
    first = int(min(real.min(), imaginary.min()))
    steps = torch.arange(count) + first
    if torch.equal(real, steps) and torch.equal(imaginary, steps + count):
        return torch.tensor([*real.tolist(), *imaginary.tolist(), *rest]), False, 2 * count
    pairs = 2 * torch.arange(count) + first
    if torch.equal(real, pairs) and torch.equal(imaginary, pairs + 1):
        return torch.tensor([*range(first, first + 2 * count), *rest]), True, 2 * count
    fastest = turning.frequencies.argsort(descending=True)
    return torch.tensor([*real[fastest].tolist(), *imaginary[fastest].tolist(), *rest]), False, 2 * count


def in_order(turning: Turning, order: Tensor, interleaved: bool) -> Turning:
    """The turning with pairs in the order of the table."""
    count = len(turning.real)
    leading = order[: 2 * count : 2] if interleaved else order[:count]
    place = {dimension: index for index, dimension in enumerate(turning.real.tolist())}
    chosen = torch.tensor([place[dimension] for dimension in leading.tolist()])
    return replace(
        turning,
        real=turning.real[chosen],
        imaginary=turning.imaginary[chosen],
        frequencies=turning.frequencies[chosen],
    )


def shared_turning(query: Turning, key: Turning, view: View) -> Turning:
    """The turning of queries, with pairs that only keys were seen to turn; slow ones are at the limit of what is seen.
    Raises UnsupportedError where they turn differently."""
    pairs = [dict(zip(_pairs(each), each.frequencies.tolist(), strict=True)) for each in (query, key)]
    more, fewer = sorted(pairs, key=len, reverse=True)
    unseen = max((more[pair] for pair in more.keys() - fewer.keys()), default=0.0)
    differing = max((abs(more[pair] - fewer[pair]) for pair in more.keys() & fewer.keys()), default=0.0)
    if fewer.keys() - more.keys() or unseen * view.run.length > UNSEEN or differing > SAME_FREQUENCY:
        raise _unshared(
            view,
            f"queries turn {len(pairs[0])} pairs, keys {len(pairs[1])}; common ones differ by {differing:.1e} rad per "
            f"position, tolerance {SAME_FREQUENCY:.0e}",
        )
    whole = query if len(pairs[0]) >= len(pairs[1]) else key
    return replace(whole, growth=query.growth)


def _pairs(turning: Turning) -> list[tuple[int, int]]:
    return list(zip(turning.real.tolist(), turning.imaginary.tolist(), strict=True))


def _unshared(view: View, detail: str) -> UnsupportedError:
    return UnsupportedError("rotation of queries that keys do not share", where=view.name, detail=detail)
