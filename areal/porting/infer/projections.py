"""Which rows of which matrices feed queries, keys and values: found by equal numbers, not by names or layouts.

At position 0 a rotation is the identity, so there every element of a query is one row of a projection (or one output of
a norm after it) up to a common factor. Over enough different tokens no two rows agree, so the match is unique.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from areal.porting.infer.capture import Other, Projection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.porting.infer.capture import Capture

MATCH_TOLERANCE = 2e-5
"""Of the distance between a column and its match, in norms of the column."""


@dataclass(frozen=True)
class Columns:
    """A column of numbers, one per token, for each element of `place`."""

    event: int
    """Index into `Capture.events`."""
    values: Tensor
    """[tokens, elements]."""


@dataclass(frozen=True)
class Match:
    """Where elements come from. All tensors have one entry per element."""

    event: Tensor
    """Index into `Capture.events`; -1: nowhere."""
    column: Tensor
    factor: Tensor
    """element = factor * source."""
    error: Tensor
    """Distance over the element's norm."""

    @property
    def found(self) -> bool:
        """Whether every element has a source."""
        return bool((self.event >= 0).all())

    def events(self) -> list[int]:
        """The events that take part, in order."""
        return sorted({int(event) for event in self.event if event >= 0})


def columns(capture: Capture, kinds: tuple[type, ...] = (Projection,)) -> list[Columns]:
    """Outputs of these events at position 0."""
    pool = []
    for index, event in enumerate(capture.events):
        if isinstance(event, kinds) and isinstance(event, Projection | Other):
            flat = at_start(event.output, capture)
            if flat is not None:
                pool.append(Columns(index, flat))
    return pool


def at_start(tensor: Tensor, capture: Capture) -> Tensor | None:
    """[B, elements] at position 0, if the tensor has something for every token."""
    flat = per_token(tensor, capture)
    return None if flat is None else flat.unflatten(0, (capture.batch, capture.length))[:, 0]


def per_token(tensor: Tensor, capture: Capture) -> Tensor | None:
    """[B * T, elements], if the tensor has something for every token: [B, T, ...], [B * T, ...] or [B, H, T, D]."""
    batch, length = capture.batch, capture.length
    if tensor.dim() > 1 and tensor.shape[:2] == (batch, length):
        return tensor.reshape(batch * length, -1)
    if tensor.dim() == 4 and tensor.shape[0] == batch and tensor.shape[2] == length:
        return tensor.transpose(1, 2).reshape(batch * length, -1)
    if tensor.dim() > 1 and tensor.shape[0] == batch * length:
        return tensor.reshape(batch * length, -1)
    return None


def match(targets: Tensor, pool: Sequence[Columns]) -> Match:
    """Find for each column of targets [tokens, elements] the column of the pool that is a multiple of it."""
    count = targets.shape[1]
    nothing = Match(
        torch.full((count,), -1), torch.zeros(count, dtype=torch.long), torch.ones(count), torch.ones(count)
    )
    if not pool:
        return nothing
    sources = torch.cat([columns.values for columns in pool], 1).double()
    owners = torch.cat([torch.full((columns.values.shape[1],), columns.event) for columns in pool])
    places = torch.cat([torch.arange(columns.values.shape[1]) for columns in pool])
    targets = targets.double()
    lengths = sources.norm(dim=0).clamp_min(1e-30)
    likeness = (targets / targets.norm(dim=0).clamp_min(1e-30)).t() @ (sources / lengths)
    best = likeness.abs().argmax(1)
    chosen = sources[:, best]
    factor = (targets * chosen).sum(0) / lengths[best] ** 2
    error = (targets - factor * chosen).norm(dim=0) / targets.norm(dim=0).clamp_min(1e-30)
    event = torch.where(error <= MATCH_TOLERANCE, owners[best], -1)
    return Match(event, places[best], factor, error)


def rows(capture: Capture, found: Match) -> tuple[Tensor, Tensor | None]:
    """Weight [elements, in] and bias [elements] of matched elements, all of them from projections of equal input."""
    weights, biases = [], []
    for event, column in zip(found.event.tolist(), found.column.tolist(), strict=True):
        projection = capture.events[event]
        assert isinstance(projection, Projection)
        weights.append(projection.weight[column])
        biases.append(None if projection.bias is None else projection.bias[column])
    present = [bias for bias in biases if bias is not None]
    if not present:
        return torch.stack(weights), None
    return torch.stack(weights), torch.stack([torch.zeros(()) if bias is None else bias for bias in biases])


def select(capture: Capture, found: Match) -> Tensor:
    """The matched columns in another capture of the same module: [B, T, elements]."""
    flat = {event: per_token(capture.events[event].output, capture) for event in found.events()}  # type: ignore[union-attr]  # matches are projections or others
    pairs = zip(found.event.tolist(), found.column.tolist(), strict=True)
    picked = [flat[event][:, column] for event, column in pairs]  # type: ignore[index]  # as for `flat`: never None
    return torch.stack(picked, 1).reshape(capture.batch, capture.length, -1)
