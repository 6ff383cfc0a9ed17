"""Nearest-name suggestions for error messages. Standard library only."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, candidates: Iterable[str], *, limit: int = 3) -> list[str]:
    """Up to `limit` candidates that look like `word`, best first; case and the choice of "-" or "_" do not count."""
    originals: dict[str, str] = {}
    for candidate in candidates:
        originals.setdefault(_fold(candidate), candidate)
    return [originals[match] for match in get_close_matches(_fold(word), originals, n=limit, cutoff=0.6)]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`"did you mean 'lr' or 'lr_schedule'?"`, or an empty string when nothing is near."""
    found = nearest(word, candidates)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")
