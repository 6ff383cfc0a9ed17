"""The message itself, as far as a diff can tell: what is known is written, what only a person knows is asked for."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from tooling.commit.files import role_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.commit.settings import Settings
    from tooling.commit.staged import Staged, Symbol

_VERBS: Final = {"feat": "add", "fix": "correct", "perf": "speed up", "refactor": "reorganize", "revert": "take back"}
_WHAT: Final = {"A": "add", "D": "remove", "R": "rename"}
WHY: Final = "<why: what was wrong or missing, and what is different now>"


def skeleton(kind: str, scope: str, staged: Staged, settings: Settings) -> str:
    """A message that conforms, except for the reason."""
    head = kind + (f"({scope})" if scope else "") + ("!" if removed_api(staged) else "") + ": "
    subject = textwrap.shorten(_subject(kind, staged), settings.header_length - len(head), placeholder=" ...")
    parts = [head + (subject or "<what it does>"), WHY]
    lines = _key_changes(staged, settings)
    if lines:
        parts.append("\n".join(lines))
    gone = removed_api(staged)
    if gone:
        said = f"BREAKING CHANGE: {', '.join(each.name for each in gone[:4])} removed; <what to use instead>"
        parts.append(said)
    return "\n\n".join(parts) + "\n"


def removed_api(staged: Staged) -> list[Symbol]:
    """Public names of modules that are gone and came up nowhere else in the same commit."""
    added = {each.name.rsplit(".", 1)[-1] for each in staged.symbols if each.what == "added"}
    return [
        each
        for each in staged.symbols
        if each.what == "removed"
        and each.public
        and role_of(each.path) == "code"
        and "." not in each.name
        and each.name not in added
        and not any(part.startswith("_") for part in each.path.split("/"))
    ]


def _subject(kind: str, staged: Staged) -> str:
    code = [each for each in staged.symbols if role_of(each.path) == "code"] or list(staged.symbols)
    ranked = sorted(code, key=lambda each: (each.what != "added" or kind != "feat", not each.public, -each.lines))
    named = [each for each in ranked if each.what == ("added" if kind == "feat" else each.what)][:2]
    if named:
        verb = _VERBS.get(kind, "change")
        if all(each.what == "removed" for each in named):
            verb = "remove"
        return f"{verb} {_joined([each.name for each in named])}"
    return _of_files(staged)


def _of_files(staged: Staged) -> str:
    statuses = {each.status for each in staged.files}
    verb = _WHAT.get(statuses.pop(), "update") if len(statuses) == 1 else "update"
    longest = sorted(staged.files, key=lambda each: (-each.churn, each.path))
    names = [each.path.rsplit("/", 1)[-1] for each in longest]
    return f"{verb} {_joined(list(dict.fromkeys(names))[:2])}"


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names)


def _key_changes(staged: Staged, settings: Settings) -> list[str]:
    """One line for each file that says something, largest first."""
    files = [each for each in staged.files if role_of(each.path) not in {"docs", "agents"}] or list(staged.files)
    if len(files) < 2:
        return []
    lines = []
    for each in sorted(files, key=lambda each: (-each.churn, each.path))[:5]:
        symbols = [symbol for symbol in staged.symbols if symbol.path == each.path]
        what = _listed(symbols) or {"A": "new", "D": "removed", "R": f"was {each.before}"}.get(each.status, "changed")
        text = f"- {each.path}: {what}"
        lines.append(textwrap.shorten(text, settings.body_width, placeholder=" ...") if " " in text[2:] else text)
    if len(files) > len(lines):
        lines.append(f"- and {len(files) - len(lines)} more files")
    return lines


def _listed(symbols: Sequence[Symbol]) -> str:
    parts = []
    for what in ("added", "changed", "removed"):
        names = [each.name for each in symbols if each.what == what and each.public]
        if names:
            parts.append(f"{what} {', '.join(names[:3])}")
    return "; ".join(parts)
