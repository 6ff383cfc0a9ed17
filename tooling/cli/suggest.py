"""Finds the name that a misspelt one may stand for; made for the `fix` of error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIMILAR = 0.6
"""Share of equal characters from which a name is worth suggesting."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `word`; None when nothing is near. Case, "-" and "_" make no difference.

    Example: nearest("rewrad", ["dataset", "reward"]) -> "reward".
    """
    from difflib import get_close_matches

    originals: dict[str, str] = {}
    for name in known:
        originals.setdefault(_folded(name), name)
    found = get_close_matches(_folded(word), originals, n=1, cutoff=_SIMILAR)
    return originals[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"did you mean 'reward'?"`, or "" when nothing is near; made for the `fix` of an error."""
    found = nearest(word, known)
    return f"did you mean {found!r}?" if found else ""


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_")
