"""Where prompts come from: rows addressed by their position in the run, so that data order needs no state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from areal.infra.rollout.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PromptSource(Protocol):
    """Rows of a run in training order. `row` must be pure: a resumed run asks for the same ordinals again."""

    def __len__(self) -> int:
        """Rows per epoch."""
        ...

    def row(self, ordinal: int, /) -> Mapping[str, Any]:
        """Row number `ordinal` of the run, from 0 without end: epochs follow each other. DataError for a bad row."""
        ...


@runtime_checkable
class IndexedPromptSource(PromptSource, Protocol):
    """A source that also knows where in the dataset a prompt came from; recorded in each trajectory's provenance."""

    def row_index(self, ordinal: int, /) -> int:
        """Index into the dataset."""
        ...


class EpochShuffle:
    """Rows of any sequence, every epoch in an order of its own that depends on (seed, epoch) only.

    Example: `EpochShuffle(dataset, seed=1).row(0)`; `shuffle=False` keeps the order of the dataset.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], *, seed: int, shuffle: bool = True) -> None:
        self._rows, self._seed, self._shuffle = rows, seed, shuffle
        # Prompts of two neighbouring epochs can be in flight together; older orders are never asked for again.
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, ordinal: int, /) -> Mapping[str, Any]:
        return self._rows[self.row_index(ordinal)]

    def row_index(self, ordinal: int, /) -> int:
        epoch, position = divmod(ordinal, len(self._rows))
        if not self._shuffle:
            return position
        if epoch not in self._orders:
            order = list(range(len(self._rows)))
            random.Random(derive_seed("epoch", self._seed, epoch)).shuffle(order)
            self._orders = {key: value for key, value in self._orders.items() if key == epoch - 1} | {epoch: order}
        return self._orders[epoch][position]
