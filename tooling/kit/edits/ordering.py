"""Where a key belongs among others: the order a table already has is found out, never imposed.

Tried in turn: code points, letters without case, numbers by value ("v2" before "v10"); for `__all__` first the order
that linters ask for (constants, classes, the rest). A table that has none of them is unsorted, and grows at its end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Order = Callable[[str], Any]

_DIGITS = re.compile(r"(\d+)")


def by_code_point(key: str) -> str:
    """Python's own order."""
    return key


def by_letter(key: str) -> tuple[str, str]:
    """Upper and lower case mixed."""
    return key.casefold(), key


def by_number(key: str) -> tuple[tuple[int, int], ...]:
    """Runs of digits by their value."""
    parts: list[tuple[int, int]] = []
    for part in _DIGITS.split(key):
        parts += [(ord("0"), int(part))] if _DIGITS.fullmatch(part) else [(ord(letter), 0) for letter in part]
    return tuple(parts)


def by_export(key: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    """CONSTANTS, then Classes, then the rest; each by number. The order of ruff's RUF022."""
    if len(key) > 1 and key.isupper():
        return 0, by_number(key)
    return (1 if key[:1].isupper() else 2), by_number(key)


def by_module(key: str) -> tuple[tuple[tuple[int, int], ...], str]:
    """Modules of import lines, as isort sorts them: case does not count, numbers do."""
    return by_number(key.casefold()), key


TABLE_ORDERS: Final[tuple[Order, ...]] = (by_code_point, by_letter, by_number)
EXPORT_ORDERS: Final[tuple[Order, ...]] = (by_export, by_code_point, by_letter)
IMPORT_ORDERS: Final[tuple[Order, ...]] = (by_module, by_code_point)


def place(keys: Sequence[str], key: str, orders: Sequence[Order]) -> tuple[int, bool]:
    """(index at which `key` goes in, whether `keys` are sorted). The first order that the keys have decides; unsorted
    keys give their end.

    Example: place(["a", "c"], "b", TABLE_ORDERS) == (1, True).
    """
    for order in orders:
        ranks = [order(known) for known in keys]
        if ranks == sorted(ranks):
            return sum(rank < order(key) for rank in ranks), True
    return len(keys), False
