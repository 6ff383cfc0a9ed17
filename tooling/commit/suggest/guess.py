"""An answer with its reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guess:
    """Example: Guess("models", 0.8, ("areal/models/** holds 3 of 4 files",), (("api", 0.2),))."""

    value: str
    """"" for no scope."""
    confidence: float
    """Between 0 and 1; how often such a guess is what people chose, roughly."""
    evidence: tuple[str, ...]
    alternatives: tuple[tuple[str, float], ...] = ()
    """Next best answers with their confidence."""
