"""Words and heads that several platforms share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tooling.harness.sources.records import RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.harness.sources.records import Expert


def instructions(expert: Expert) -> str:
    """The expert's text, ending with what it owns and may do: no platform enforces all of it."""
    parts = [expert.page.body.strip("\n")]
    if expert.owns:
        parts.append(f"Files you answer for: {', '.join(f'`{glob}`' for glob in expert.owns)}.")
    if expert.scope == RUN:
        allowed = ", ".join(f"`{command}`" for command in expert.commands)
        parts.append(f"You edit nothing. You run these commands and no others: {allowed}.")
    else:
        parts.append("You are read-only: read and search. Edit nothing, run nothing, fetch nothing.")
    return "\n\n".join(parts) + "\n"


def quoted(value: Any) -> str:
    """A text, number, list or mapping as JSON, in which only printable characters stand for themselves: TOML and YAML
    read it as the same value."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)


def head(values: Sequence[tuple[str, Any]]) -> str:
    """A head of YAML. Each value is written as JSON, which is YAML too: no text can be read as anything else."""
    lines = [f"{key}: {quoted(value)}" for key, value in values]
    return "---\n" + "\n".join(lines) + "\n---\n"
