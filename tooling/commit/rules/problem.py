"""One thing that is wrong with a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """Example: Problem("header-length", "error", 1, "has 80 characters, 72 are allowed", "shorten it by 8")."""

    rule: str
    severity: Literal["error", "warning"]
    line: int
    """1-based, in the message without comments."""
    message: str
    fix: str
    """What to do, as an instruction."""


def error(rule: str, line: int, message: str, fix: str) -> Problem:
    """A problem that refuses the commit."""
    return Problem(rule, "error", line, message, fix)


def warning(rule: str, line: int, message: str, fix: str) -> Problem:
    """A problem that is only mentioned."""
    return Problem(rule, "warning", line, message, fix)
