"""A commit message taken apart, by Conventional Commits 1.0.

    parse("feat(api)!: drop the old field\n\nBREAKING CHANGE: ...")

Nothing is judged here: what cannot be read as a conventional header is kept as it stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["conventional", "revert", "merge", "fixup", "other", "empty"]

HEADER = re.compile(r"(?P<type>[A-Za-z][\w-]*)(?:\((?P<scope>[^()]*)\))?(?P<breaking>!)?: (?P<subject>\S.*)", re.DOTALL)
NUMBER = re.compile(r"(?: \(#\d+\))+$")
"""What a squash merge appends: " (#12)"; nobody typed it, and it counts for no limit."""
FOOTER = re.compile(
    r"(?P<token>BREAKING CHANGE|[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*)(?P<separator>: | #)(?P<value>.*)"
)
BREAKING = ("BREAKING CHANGE", "BREAKING-CHANGE")
_SCISSORS = re.compile(r"^\S{1,3} -{8,} >8 -{8,}\s*$", re.MULTILINE)
_FIXUP = re.compile(r"(?:fixup|squash|amend)! +")
_REVERT = re.compile(r'Revert "|Reapply "|Revert \S')
_MERGE = re.compile(
    r"Merge (?:branch|branches|remote-tracking branch|tag|tags|commit|commits|pull request|[0-9a-f]{7,} into) ?"
)


@dataclass(frozen=True, slots=True)
class Footer:
    """Example: Footer(token="Refs", value="#12", line=5)."""

    token: str
    value: str
    line: int
    """1-based, in the message without comments."""

    @property
    def breaking(self) -> bool:
        """Whether it announces a breaking change."""
        return self.token in BREAKING


@dataclass(frozen=True, slots=True)
class Message:
    """Fields are empty where the header is not conventional. Lines are those of the message without comments."""

    kind: Kind
    lines: tuple[str, ...]
    type: str = ""
    scope: str | None = None
    """None without brackets; "" for `fix(): x`."""
    marked: bool = False
    """`!` before the colon."""
    subject: str = ""
    footer_line: int = 0
    """Number of the first line of the footers; 0 without any."""
    footers: tuple[Footer, ...] = ()

    @property
    def header(self) -> str:
        """The first line."""
        return self.lines[0] if self.lines else ""

    @property
    def body(self) -> tuple[tuple[int, str], ...]:
        """Numbered lines between header and footers."""
        end = self.footer_line - 1 if self.footer_line else len(self.lines)
        return tuple((number, self.lines[number - 1]) for number in range(2, end + 1))

    @property
    def breaking(self) -> bool:
        """Whether it announces a breaking change, in the header or a footer."""
        return self.marked or any(footer.breaking for footer in self.footers)

    @property
    def scopes(self) -> tuple[str, ...]:
        """`feat(api,utils): x` has two."""
        return tuple(part.strip() for part in self.scope.split(",")) if self.scope else ()


def cleaned(text: str) -> str:
    """Return what git would keep of a message file: no comments, nothing below the scissors line of `git commit -v`."""
    scissors = _SCISSORS.search(text)
    if scissors:
        text = text[: scissors.start()]
    comment = scissors[0].split(" ", 1)[0] if scissors else "#"
    return "\n".join(line for line in text.splitlines() if not line.startswith(comment))


def parse(text: str, *, merge: bool = False) -> Message:
    """Take a message apart. merge: the commit has several parents, whatever its header says."""
    lines = tuple(line.rstrip() for line in text.strip("\r\n").split("\n"))
    while lines and not lines[-1]:
        lines = lines[:-1]
    while lines and not lines[0]:
        lines = lines[1:]
    if not lines:
        return Message("empty", ())
    header = lines[0]
    first, footers = _footers(lines)
    found = HEADER.fullmatch(header)
    if found is not None:
        kind: Kind = "merge" if merge else "conventional"
        scope = found["scope"]
        return Message(kind, lines, found["type"], scope, bool(found["breaking"]), found["subject"], first, footers)
    if merge or _MERGE.match(header):
        kind = "merge"
    elif _FIXUP.match(header):
        kind = "fixup"
    else:
        kind = "revert" if _REVERT.match(header) else "other"
    return Message(kind, lines, footer_line=first, footers=footers)


def _footers(lines: tuple[str, ...]) -> tuple[int, tuple[Footer, ...]]:
    """Return the number of the first footer line, and the footers. They are the last paragraphs that begin with one
    each; a breaking change begins them wherever it stands, since its text may have paragraphs of its own."""
    starts = [number for number in range(2, len(lines)) if lines[number] and not lines[number - 1]]
    first = None
    for start in reversed(starts):
        if FOOTER.fullmatch(lines[start]) is None:
            break
        first = start
    breaking = (start for start in starts if (found := FOOTER.fullmatch(lines[start])) and found["token"] in BREAKING)
    first = min(filter(None, (first, next(breaking, None))), default=None)
    if first is None:
        return 0, ()
    footers: list[Footer] = []
    for number, line in enumerate(lines[first:], first + 1):
        found = FOOTER.fullmatch(line)
        if found is not None:
            value = found["value"] if found["separator"] == ": " else f"#{found['value']}"
            footers.append(Footer(found["token"], value.strip(), number))
        elif footers:
            last = footers[-1]
            footers[-1] = Footer(last.token, f"{last.value}\n{line.strip()}", last.line)
    return first + 1, tuple(Footer(each.token, each.value.strip(), each.line) for each in footers)
