"""What rules say of themselves: rules.toml, read when the first of them is asked."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from tooling.cli.toml import parse_toml

TABLE = Path(__file__).with_name("rules.toml")


@dataclass(frozen=True, slots=True)
class RuleText:
    """The words of one rule."""

    concern: str
    """What it serves, together with other rules."""
    title: str
    why: str
    fix: str
    example: str
    """Code or a situation in which it fires."""


@functools.cache
def rule_texts() -> dict[str, RuleText]:
    """Return the words of every rule by its id, in the order of the table."""
    found: dict[str, RuleText] = {}
    for concern in parse_toml(TABLE.read_bytes())["concern"]:
        for name, row in concern["rules"].items():
            found[name] = RuleText(concern=concern["title"], **row)
    return found


def concerns() -> dict[str, tuple[str, ...]]:
    """Return every concern with the ids of its rules."""
    found: dict[str, list[str]] = {}
    for name, said in rule_texts().items():
        found.setdefault(said.concern, []).append(name)
    return {concern: tuple(names) for concern, names in found.items()}
