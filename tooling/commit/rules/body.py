"""Everything after the first line: blank lines, width, footers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.commit.message import BREAKING, FOOTER
from tooling.commit.rules.problem import Problem, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.commit.message import Message
    from tooling.commit.settings import Settings

_BREAKING_WORD = re.compile(r"breaking[ -]changes?\s*:", re.IGNORECASE)
_SPACED_TOKEN = re.compile(
    r"(?P<token>(?:Signed off|Co authored|Reviewed|Acked|Tested|Reported|Suggested) by): (?P<value>.*)"
)
_UNBREAKABLE = re.compile(r"https?://|^(?:    |\t|>|\||```)|^\S+$")
"""Lines that stay as long as they are: links, code, quotes, tables, one word alone."""


def body_problems(message: Message, settings: Settings) -> Iterator[Problem]:
    """Everything wrong after the header."""
    if len(message.lines) > 1 and message.lines[1]:
        yield error("body-blank-line", 2, "no blank line between header and body", "insert one")
    yield from _width(message, settings.body_width)
    yield from _breaking(message)
    for number, line in enumerate(message.lines[1:], 2):
        found = _SPACED_TOKEN.match(line)
        if found is not None:
            better = found["token"].replace(" ", "-")
            yield warning("footer-token", number, f"{found['token']!r} is no footer", f"write `{better}: ...`")


def _width(message: Message, width: int) -> Iterator[Problem]:
    """The body only: footers are for programs."""
    fenced = False
    for number, line in message.body:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif len(line) > width and not fenced and not _UNBREAKABLE.search(line):
            fix = f"wrap it at {width}"
            yield warning("body-width", number, f"has {len(line)} characters, {width} are allowed", fix)


def _breaking(message: Message) -> Iterator[Problem]:
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


def _unsaid(number: int) -> Problem:
    return error("breaking-empty", number, "a breaking change is announced and not described", "say what breaks")
