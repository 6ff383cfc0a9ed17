"""Finds what is wrong with a commit message: where, and how to put it right.

    problems(parse(text), settings)

A merge, a revert in git's own words and a fixup that waits for `git rebase --autosquash` are accepted as git writes
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tooling.cli.report import printable
from tooling.cli.suggest import nearest
from tooling.commit.message import BREAKING, FOOTER, NUMBER
from tooling.commit.mood import imperative_of
from tooling.commit.settings import folded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.commit.message import Message
    from tooling.commit.settings import CommitSettings


@dataclass(frozen=True, slots=True)
class MessageProblem:
    """Example: MessageProblem("header-length", "error", 1, "has 80 characters, 72 are allowed", "shorten it by 8")."""

    rule: str
    severity: Literal["error", "warning"]
    line: int
    """1-based, in the message without comments."""
    message: str
    fix: str
    """What to do, as an instruction."""


def error(rule: str, line: int, message: str, fix: str) -> MessageProblem:
    """Return a problem that refuses the commit."""
    return MessageProblem(rule, "error", line, message, fix)


def warning(rule: str, line: int, message: str, fix: str) -> MessageProblem:
    """Return a problem that is only mentioned."""
    return MessageProblem(rule, "warning", line, message, fix)


__all__ = ["MessageProblem", "problems"]


def problems(message: Message, settings: CommitSettings, *, final: bool = False) -> list[MessageProblem]:
    """List everything wrong with a message, by line. final: it is part of a range that is to be merged, so that a fixup
    has been forgotten."""
    if message.kind == "empty":
        return [error("empty", 1, "the message is empty", "say what the commit does: `type(scope): subject`")]
    if message.kind == "merge":
        return []
    if message.kind == "fixup":
        fix = "run `git rebase -i --autosquash BASE`"
        return [error("fixup", 1, "waits to be squashed into another commit", fix)] if final else []
    found = [*header_problems(message, settings), *body_problems(message, settings)]
    named = any(footer.token.lower() in {"refs", "reverts"} for footer in message.footers)
    named |= any("This reverts commit " in line for line in message.lines)
    if (message.kind == "revert" or message.type.lower() == "revert") and not named:
        found.append(warning("revert-refs", 1, "does not say which commit it reverts", "add a footer `Refs: HASH`"))
    return sorted(found, key=lambda problem: problem.line)


SYNONYMS: Final = {
    "bug": "fix",
    "bugfix": "fix",
    "cleanup": "refactor",
    "config": "chore",
    "dep": "build",
    "deps": "build",
    "doc": "docs",
    "enhancement": "feat",
    "feature": "feat",
    "fixes": "fix",
    "format": "style",
    "hotfix": "fix",
    "misc": "chore",
    "performance": "perf",
    "refact": "refactor",
    "release": "chore",
    "testing": "test",
    "tests": "test",
    "wip": "feat",
}
"""What people write for a type."""
_LOOSE = re.compile(
    r"\s*\[?(?P<type>[A-Za-z][\w-]*)\]?(?P<gap>\s*)(?:\((?P<scope>[^()]*)\))?\s*(?P<breaking>!)?\s*:?\s*(?P<subject>.*)"
)
_SCOPE = re.compile(r"[\w./-]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def header_problems(message: Message, settings: CommitSettings) -> Iterator[MessageProblem]:
    """List everything wrong with the first line, most important first."""
    if message.kind == "revert":
        return
    if message.kind == "other":
        yield error("header-format", 1, "is not `type(scope)!: subject`", _reshaped(message.header, settings))
    else:
        yield from _type(message, settings)
        yield from _scope(message, settings)
        yield from _subject(message)
    if printable(message.header) != message.header or "\t" in message.header or "\ufffd" in message.header:
        yield error("header-characters", 1, "holds control characters, or bytes that are not UTF-8", "remove them")
    length, allowed = len(NUMBER.sub("", message.header)), settings.header_length
    if length > allowed:
        fix = f"shorten it by {length - allowed}: the rest belongs in the body"
        yield error("header-length", 1, f"has {length} characters, {allowed} are allowed", fix)


def _reshaped(header: str, settings: CommitSettings) -> str:
    """Say what a malformed header should look like, as far as that can be inferred."""
    found = _LOOSE.fullmatch(header)
    if found is None:
        return "write e.g. `fix: " + printable(header.strip()) + "`"
    word = found["type"]
    kind = _known_type(word, settings)
    if kind is None or not (found["subject"] and (found["scope"] or ":" in header or "]" in header)):
        return f"begin with a type ({', '.join(settings.types)}), then a colon and a space"
    scope = f"({found['scope']})" if found["scope"] else ""
    return f"write `{printable(kind + scope + (found['breaking'] or '') + ': ' + found['subject'])}`"


def _known_type(word: str, settings: CommitSettings) -> str | None:
    lower = word.lower()
    if lower in settings.types:
        return lower
    meant = SYNONYMS.get(lower)
    return meant if meant in settings.types else None


def _type(message: Message, settings: CommitSettings) -> Iterator[MessageProblem]:
    word = message.type
    if word in settings.types:
        return
    known = _known_type(word, settings)
    if word.lower() in settings.types:
        yield warning("type-case", 1, f"the type {word!r} is not in lower case", f"write `{word.lower()}`")
        return
    known = known or nearest(word, settings.types)
    hint = f"write `{known}`" if known else f"use one of {', '.join(settings.types)}"
    yield error("type-unknown", 1, f"{word!r} is not a type", hint)


def _scope(message: Message, settings: CommitSettings) -> Iterator[MessageProblem]:
    if message.scope is None:
        return
    if not message.scope.strip():
        yield error("scope-empty", 1, "the brackets hold no scope", "name one, or leave out the brackets")
        return
    for word in message.scopes:
        if not _SCOPE.fullmatch(word):
            fix = "use letters, digits, '-', '/' and '.'; separate several by commas"
            yield error("scope-format", 1, f"{printable(word)!r} is not a scope", fix)
        else:
            yield from _known_scope(word, settings)


def _known_scope(word: str, settings: CommitSettings) -> Iterator[MessageProblem]:
    if not settings.scopes or settings.unknown_scope == "allow" or word in settings.scopes:
        return
    meant = settings.canonical(word)
    if meant is not None:
        yield warning("scope-alias", 1, f"the scope {word!r} is called {meant!r} here", f"write `({meant})`")
        return
    names = sorted(settings.scopes)
    close = nearest(folded(word), names)
    fix = f"did you mean {close!r}?" if close else f"use one of {', '.join(names)}"
    report = error if settings.unknown_scope == "error" else warning
    yield report("scope-unknown", 1, f"the table of scopes has no {word!r}", fix)


def _subject(message: Message) -> Iterator[MessageProblem]:
    subject = NUMBER.sub("", message.subject)
    if subject.endswith((".", "…")) and not subject.endswith("..."):
        yield error("subject-full-stop", 1, "the subject ends with a full stop", "remove it")
    found = _WORD.match(subject)
    if found is None:
        return
    word = found[0]
    if word[0].isupper() and word[1:].islower():
        yield warning("subject-case", 1, f"the subject begins with a capital: {word!r}", f"write {word.lower()!r}")
    if word.lower() == message.type.lower() != "revert":
        fix = "say what was done, without the word of the type"
        yield warning("subject-repeats-type", 1, f"the subject begins with {word!r}, as the type does", fix)
    better = imperative_of(word, next(iter(subject[found.end() :].split(maxsplit=1)), ""))
    if better is not None:
        fix = f"write {better!r}: a commit is an order to the code"
        yield error("imperative", 1, f"{word!r} is not in the imperative mood", fix)


_BREAKING_WORD = re.compile(r"breaking[ -]changes?\s*:", re.IGNORECASE)
_SPACED_TOKEN = re.compile(
    r"(?P<token>(?:Signed off|Co authored|Reviewed|Acked|Tested|Reported|Suggested) by): (?P<value>.*)"
)
_UNBREAKABLE = re.compile(r"https?://|^(?:    |\t|>|\||```)|^\S+$")
"""Lines that stay as long as they are: links, code, quotes, tables, one word alone."""


def body_problems(message: Message, settings: CommitSettings) -> Iterator[MessageProblem]:
    """List everything wrong after the header."""
    if len(message.lines) > 1 and message.lines[1]:
        yield error("body-blank-line", 2, "no blank line between header and body", "insert one")
    width, fenced = settings.body_width, False
    for number, line in message.body:  # footers are for programs
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif len(line) > width and not fenced and not _UNBREAKABLE.search(line):
            yield warning(
                "body-width", number, f"has {len(line)} characters, {width} are allowed", f"wrap it at {width}"
            )
    yield from _breaking(message)
    for number, line in enumerate(message.lines[1:], 2):
        found = _SPACED_TOKEN.match(line)
        if found is not None:
            better = found["token"].replace(" ", "-")
            yield warning("footer-token", number, f"{found['token']!r} is not a footer", f"write `{better}: ...`")


def _breaking(message: Message) -> Iterator[MessageProblem]:
    known = {footer.line: footer for footer in message.footers if footer.breaking}
    for number, line in enumerate(message.lines[1:], 2):
        if number in known:
            if not known[number].value:
                yield _unsaid(number)
            continue
        found = _BREAKING_WORD.match(line)
        if found is None:
            continue
        token = found[0].rstrip(": \t")
        if token not in BREAKING:
            fix = "write `BREAKING CHANGE: ...`"
            yield error("breaking-case", number, f"{token!r} announces nothing to programs", fix)
        elif FOOTER.fullmatch(line) is None:
            yield _unsaid(number)
        else:
            yield error("footer-blank-line", number, "no blank line before the footer", "insert one")


def _unsaid(number: int) -> MessageProblem:
    return error("breaking-empty", number, "a breaking change is announced and not described", "say what breaks")
