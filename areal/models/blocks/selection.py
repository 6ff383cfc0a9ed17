"""Which keys attention is restricted to where an indexer chooses them: the best few of those that a query may see.

Nothing here has a gradient, and no positive factor on scores matters. Equal scores are common, since what is negative
counts as zero; the earliest of them are taken, so that training and generation choose alike however rows are padded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

import torch

from areal.api import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import SelectionBackend

Kept = TypeVar("Kept")

MAX_SCORES: Final = 1 << 24
"""Above this many products of index heads, queries are scored in several parts."""


@torch.no_grad()
def choose(query: Tensor, key: Tensor, weight: Tensor, visible: Tensor, count: int) -> Tensor | None:
    """Return which keys each query attends to, bool [R, 1, Q, K]: the `count` visible ones of the largest sum over
    heads of weight * relu(query key), or all where there are fewer. None where no more than `count` keys are given.

    query: [R, Q, H, D]; key: [R, K, D]; weight: [R, Q, H]; visible: bool, broadcast over [R, 1, Q, K].
    """
    rows, num_queries, heads, _ = query.shape
    num_keys = key.shape[1]
    if num_keys <= count:
        return None
    wide = torch.promote_types(query.dtype, torch.float32)
    transposed = key.to(wide).transpose(1, 2).unsqueeze(1)
    visible = visible.expand(rows, 1, num_queries, num_keys).squeeze(1)
    chosen = []
    step = max(1, MAX_SCORES // (rows * heads * num_keys))
    for first in range(0, num_queries, step):
        part = slice(first, first + step)
        products = (query[:, part].to(wide) @ transposed).relu()
        scores = (weight[:, part].to(wide).unsqueeze(2) @ products).squeeze(2)
        seen = visible[:, part]
        chosen.append(largest(scores.masked_fill(~seen, float("-inf")), count) & seen)
    return torch.cat(chosen, 1).unsqueeze(1)


def largest(scores: Tensor, count: int) -> Tensor:
    """Return bool [..., K], true at the `count` largest scores [..., K]; of equal ones, at the first."""
    limit = scores.topk(count, -1).values[..., -1:]
    above, equal = scores > limit, scores == limit
    room = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))


class Selections(Generic[Kept]):
    """What the layers of one forward chose, in the form of their backend. A layer without an indexer of its own takes
    over what the last one before it chose."""

    def __init__(self) -> None:
        self._of: dict[int, Kept] = {}

    def keep(self, layer: int, chosen: Kept) -> None:
        """Add what a layer chose. Earlier ones are dropped, unless a backward pass may recompute layers after them."""
        if not torch.is_grad_enabled():
            self._of.clear()
        self._of[layer] = chosen

    def of(self, layer: int) -> Kept:
        """Return what this layer chose, or the last one before it. Raises ModelError where none did."""
        last = max((each for each in self._of if each <= layer), default=None)
        if last is None:
            raise ModelError(
                f"layer {layer} attends to tokens that an earlier layer chose, but none before it has an indexer in "
                f"this forward; let the first layer, and the first one of every piece of a pipeline, have its own"
            )
        return self._of[last]


def with_selection(backend: object, layer: int) -> SelectionBackend:
    """Return `backend`, which has to select tokens. Raises ModelError where it cannot."""
    if hasattr(backend, "select"):
        return cast("SelectionBackend", backend)
    raise ModelError(
        f"layer {layer} attends to the tokens that its indexer chooses, which {type(backend).__name__} cannot do; use "
        f"a backend that implements areal.api.SelectionBackend, such as PackedBackend"
    )
