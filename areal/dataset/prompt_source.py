"""The order in which rows are visited: a pure function of (seed, ordinal), so a resumed run sees what it would have
seen.

Ordinals count visits from 0 and never end; epoch e covers ordinals e * len(rows) .. (e + 1) * len(rows) - 1.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FINGERPRINT_ROWS = 512
_EPOCHS_KEPT = 2
"""Prompts in flight can straddle one epoch boundary."""


class ShuffledRows:
    """Rows in a new seeded order each epoch, or in file order.

    Example: `ShuffledRows(dataset, seed=1, shuffle=True).row(130)` is row 2 of the third epoch of 64 rows.
    """

    def __init__(self, dataset: Sequence[Mapping[str, Any]] | Any, *, seed: int, shuffle: bool = True) -> None:
        """dataset: anything with `len` and integer indexing that yields mappings; ValueError when it is empty."""
        if len(dataset) == 0:
            raise ValueError("no rows to visit: the dataset is empty")
        self._dataset = dataset
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Rows per epoch."""
        return len(self._dataset)

    def row(self, ordinal: int) -> Mapping[str, Any]:
        """The row visited at `ordinal` (>= 0)."""
        row: Mapping[str, Any] = self._dataset[self.row_index(ordinal)]
        return row

    def row_index(self, ordinal: int) -> int:
        """Index in the dataset of the row visited at `ordinal`."""
        if ordinal < 0:
            raise IndexError(f"ordinal is {ordinal}, expected >= 0")
        epoch, position = divmod(ordinal, len(self._dataset))
        return self._order(epoch)[position] if self._shuffle else position

    def fingerprint(self) -> str:
        """Digest of how many rows there are and of 512 of them, evenly spread (all, if there are no more)."""
        digest = hashlib.sha256(str(len(self)).encode())
        count = min(len(self), _FINGERPRINT_ROWS)
        for number in range(count):
            row = dict(self._dataset[number * len(self) // count])
            # What JSON does not know, images for instance, is told apart by type only: their text may hold addresses.
            digest.update(json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__).encode())
        return digest.hexdigest()

    def _order(self, epoch: int) -> list[int]:
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(len(self._dataset)))
            # A string seed is hashed with SHA-512, so neighbouring seeds and epochs give unrelated orders.
            random.Random(f"row order {self._seed} {epoch}").shuffle(order)
            self._orders[epoch] = order
            for old in sorted(self._orders)[:-_EPOCHS_KEPT]:
                self._orders.pop(old, None)
        return order
