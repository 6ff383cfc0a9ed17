"""The first line: `type(scope)!: subject`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.cli.report import printable
from tooling.cli.suggest import nearest
from tooling.commit.message import NUMBER
from tooling.commit.rules.mood import imperative_of
from tooling.commit.rules.problem import Problem, error, warning
from tooling.commit.settings import folded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.commit.message import Message
    from tooling.commit.settings import Settings

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


def header_problems(message: Message, settings: Settings) -> Iterator[Problem]:
    """Everything wrong with the first line, most important first."""
    if message.kind == "revert":
        return
    if message.kind == "other":
        yield error("header-format", 1, "is not `type(scope)!: subject`", _reshaped(message.header, settings))
    else:
        yield from _type(message, settings)
        yield from _scope(message, settings)
        yield from _subject(message)
    if printable(message.header) != message.header or "\t" in message.header or "\ufffd" in message.header:
        yield error("header-characters", 1, "holds control characters, or bytes that are no UTF-8", "remove them")
    length, allowed = len(NUMBER.sub("", message.header)), settings.header_length
    if length > allowed:
        fix = f"shorten it by {length - allowed}: the rest belongs in the body"
        yield error("header-length", 1, f"has {length} characters, {allowed} are allowed", fix)


def _reshaped(header: str, settings: Settings) -> str:
    """How a header that is none would have to look, as far as it can be told."""
    found = _LOOSE.fullmatch(header)
    if found is None:
        return "write e.g. `fix: " + printable(header.strip()) + "`"
    word = found["type"]
    kind = _known_type(word, settings)
    if kind is None or not (found["subject"] and (found["scope"] or ":" in header or "]" in header)):
        return f"begin with a type ({', '.join(settings.types)}), then a colon and a space"
    scope = f"({found['scope']})" if found["scope"] else ""
    return f"write `{printable(kind + scope + (found['breaking'] or '') + ': ' + found['subject'])}`"


def _known_type(word: str, settings: Settings) -> str | None:
    lower = word.lower()
    if lower in settings.types:
        return lower
    meant = SYNONYMS.get(lower)
    return meant if meant in settings.types else None


def _type(message: Message, settings: Settings) -> Iterator[Problem]:
    word = message.type
    if word in settings.types:
        return
    known = _known_type(word, settings)
    if word.lower() in settings.types:
        yield warning("type-case", 1, f"the type {word!r} is not in lower case", f"write `{word.lower()}`")
        return
    known = known or nearest(word, settings.types)
    hint = f"write `{known}`" if known else f"use one of {', '.join(settings.types)}"
    yield error("type-unknown", 1, f"{word!r} is no type", hint)


def _scope(message: Message, settings: Settings) -> Iterator[Problem]:
    if message.scope is None:
        return
    if not message.scope.strip():
        yield error("scope-empty", 1, "the brackets hold no scope", "name one, or leave out the brackets")
        return
    for word in message.scopes:
        if not _SCOPE.fullmatch(word):
            fix = "use letters, digits, '-', '/' and '.'; separate several by commas"
            yield error("scope-format", 1, f"{printable(word)!r} is no scope", fix)
        else:
            yield from _known_scope(word, settings)


def _known_scope(word: str, settings: Settings) -> Iterator[Problem]:
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


def _subject(message: Message) -> Iterator[Problem]:
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
    better = imperative_of(word, _following(subject[found.end() :]))
    if better is not None:
        fix = f"write {better!r}: a commit is an order to the code"
        yield error("imperative", 1, f"{word!r} is not in the imperative mood", fix)


def _following(rest: str) -> str:
    words = rest.split(maxsplit=1)
    return words[0] if words else ""
