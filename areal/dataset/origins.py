"""Where the rows of a dataset come from and how long they are, kept beside it: no column of it, so no reward sees it.

    dataset = remember(dataset, RowOrigins(source="data/train.jsonl", unit="line", numbers=[1, 2, 4]))
    place_of(dataset, 2)        # "row 2 (data/train.jsonl, line 4)"

What is made of a dataset (`select`, `map`) is another one, of which nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimit:
    """How long a row may be.

    Example: `LengthLimit(tokens=64, reason="engine.max_seq_len 96 - gconfig.max_new_tokens 32")`.
    """

    tokens: int
    reason: str
    """What it follows from, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What was done about rows that are too long."""

    num_read: int
    """Rows before."""
    num_overlong: int
    num_truncated: int
    """Of those too long, rows that were shortened; the others were left out."""
    longest: int
    """Tokens of the longest row before; 0 when none was measured."""
    limit: int | None
    """Most tokens of a row; None without a limit."""
    reason: str
    """What the limit follows from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigins:
    """The places of a dataset's rows."""

    source: str
    unit: str
    """What `numbers` count: "line" (from 1) of a text file, or "row" (from 0) of a table."""
    numbers: Sequence[int]
    """Of each row; empty when unknown."""
    lengths: Sequence[int | None] = ()
    """Tokens of each row (`areal.dataset.encoding.row_length`), None where it has no number; empty when unknown."""
    fitting: Fitting | None = None


_known: MutableMapping[Any, RowOrigins] = WeakKeyDictionary()


def remember(dataset: Any, origins: RowOrigins) -> Any:
    """Note the origins of a dataset for as long as it lives; returns it."""
    _known[dataset] = origins
    return dataset


def origins_of(dataset: Any) -> RowOrigins | None:
    """Return what was remembered about this very dataset; None when nothing was."""
    try:
        return _known.get(dataset)
    except TypeError:  # a list of rows has no identity to go by
        return None


def place_of(dataset: Any, index: int) -> str:
    """Return a row in words, with its place in the source where that is known."""
    origins = origins_of(dataset)
    if origins is None or index >= len(origins.numbers):
        return f"row {index}"
    return f"row {index} ({origins.source}, {origins.unit} {origins.numbers[index]})"
