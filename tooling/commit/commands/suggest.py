"""Suggests type, scope and a skeleton of a message from what is staged, with the evidence and what else it could be.

The table of scopes in pyproject.toml decides; without one, what people chose for these folders before.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.commit.changes import read_staged
from tooling.commit.history import CommitHistory, read_history
from tooling.commit.settings import read_commit_settings
from tooling.commit.suggestion import Guess, guess_scope, guess_type, skeleton

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--type", metavar="TYPE", help="this type, instead of the suggested one")
    parser.add_argument("--scope", metavar="SCOPE", help='this scope ("": none), instead of the suggested one')
    parser.add_argument("--message-only", action="store_true", help="print only the skeleton of the message")


def run(arguments: argparse.Namespace) -> Report:
    """Suggest a message for what is staged."""
    root = find_repository(arguments.repo).root
    settings, staged = read_commit_settings(root), read_staged(root)
    if not staged.files:
        raise UsageError("nothing is staged", fix="`git add` what belongs to the commit first")
    if arguments.type is not None and arguments.type not in settings.types:
        raise UsageError("unknown type", where=f"--type {arguments.type}", fix=f"one of {', '.join(settings.types)}")
    kind, scope = _given(arguments.type, "--type"), _given(arguments.scope, "--scope")
    history = read_history(root) if kind is None or scope is None else CommitHistory()
    kind = kind or guess_type(staged.files, settings.types, history.types)
    scope = scope or guess_scope(staged.files, staged.symbols, settings, history.scopes)
    message = skeleton(kind.value, scope.value, staged, settings)
    return Report(
        command="areal-commit suggest",
        changing=False,
        text=message
        if arguments.message_only
        else f"{message}\n{_explained('type', kind)}\n{_explained('scope', scope)}",
        data={
            "message": message,
            "header": message.split("\n", 1)[0],
            "type": _fields(kind),
            "scope": _fields(scope),
            "files": [asdict(each) for each in staged.files],
            "symbols": [asdict(each) for each in staged.symbols],
        },
    )


def _given(value: str | None, option: str) -> Guess | None:
    return None if value is None else Guess(value, 1.0, (f"given by {option}",))


def _explained(name: str, guess: Guess) -> str:
    lines = [f"# {name}: {guess.value or 'none'} ({guess.confidence:.0%})"]
    lines += [f"#   {reason}" for reason in guess.evidence]
    if guess.alternatives:
        others = ", ".join(f"{value or 'none'} ({confidence:.0%})" for value, confidence in guess.alternatives)
        lines.append(f"#   or: {others}")
    return "\n".join(lines)


def _fields(guess: Guess) -> dict[str, Any]:
    return {
        "value": guess.value,
        "confidence": guess.confidence,
        "evidence": list(guess.evidence),
        "alternatives": [{"value": value, "confidence": confidence} for value, confidence in guess.alternatives],
    }
