"""The message of the commit that a branch becomes.

Type and scope are those that `areal-commit suggest` finds in the diff; the words are the authors': the subject of the
commit that fits best, and what every commit said. Nothing is made up, and no placeholder reaches a remote.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

from tooling.commit.changes import Sides, read_staged
from tooling.commit.habits import habits_of
from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import read_commit_settings
from tooling.commit.suggestion import guess_scope, guess_type, skeleton
from tooling.pull_request.errors import TitleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tooling.commit.message import Message
    from tooling.commit.rules import MessageProblem
    from tooling.commit.settings import CommitSettings
    from tooling.pull_request.history.commits import Commit

_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_RANK: Final = ("feat", "fix", "perf", "refactor", "revert", "docs", "build", "ci", "test", "style", "gov", "chore")
_NOISE: Final = re.compile(r"(?:fixup|squash|amend)! +")
_LISTED: Final = 30
"""Commits that a message lists."""
_COAUTHOR: Final = "Co-authored-by"


def conforms(header: str, root: Path) -> bool:
    """Whether a header may stay as it is, and the words below it with it."""
    return not _errors(header, read_commit_settings(root))


def _errors(header: str, settings: CommitSettings) -> list[MessageProblem]:
    found = problems(parse(header), settings, final=True)
    return [each for each in found if each.severity == "error"]


def checked_title(title: str, root: Path) -> str:
    """A title that was given. Raises TitleError that says what is wrong with it."""
    header = " ".join(_CONTROL.sub(" ", title).split())
    wrong = _errors(header, read_commit_settings(root))
    if wrong:
        said = "; ".join(each.message for each in wrong)
        raise TitleError(f"the title does not conform: {said}", where=f"--title {header!r}", fix=wrong[0].fix)
    return header


def with_header(text: str, header: str) -> str:
    """A message under another header."""
    _, _, rest = text.strip().partition("\n")
    return f"{header}\n{rest}"


def joined_message(root: Path, commits: Sequence[Commit], before: str, after: str, title: str) -> str:
    """One message for all commits. before, after: the sides of the change; title: the header, if one was given."""
    settings = read_commit_settings(root)
    parsed = [parse(_clean(each.message)) for each in commits]
    header = title or _header(root, settings, parsed, before, after)
    if any(each.breaking for each in parsed) and not parse(header).breaking and len(header) < settings.header_length:
        header = re.sub(r"^([^:]*): ", r"\1!: ", header, count=1)
    footers = list(dict.fromkeys([*_footers(parsed), *coauthors(commits)]))
    parts = [header, _body(parsed, header, settings), "\n".join(footers)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _body(parsed: Sequence[Message], header: str, settings: CommitSettings) -> str:
    """What the commits say: first the one that gave the header, then the others as a list."""
    subject = parse(header).subject
    first = next((each for each in parsed if each.subject == subject), None)
    text = _text(first) if first is not None else ""
    if len(parsed) == 1 and first is None:
        return "\n\n".join(part for part in (parsed[0].header.strip(), _text(parsed[0])) if part)
    others = [each for each in parsed if each is not first and not _NOISE.match(each.header)]
    items = [_item(each, settings.body_width) for each in others[:_LISTED]]
    items += [f"- and {len(others) - _LISTED} more commits"] if len(others) > _LISTED else []
    listed = "\n".join(dict.fromkeys(items))
    # A list that an earlier run began goes on.
    gap = "\n" if text.rpartition("\n")[2].startswith(("- ", "  ")) else "\n\n"
    return gap.join(part for part in (text, listed) if part)


def coauthors(commits: Sequence[Commit]) -> list[str]:
    """A line for everybody but the author of the joined commit, in the order of their first commits."""
    first = author_of(commits).person
    people = {each.person[1].casefold(): each.person for each in commits}
    people.pop(first[1].casefold(), None)
    return [f"{_COAUTHOR}: {_CONTROL.sub('', name)} <{address}>" for name, address in people.values()]


def author_of(commits: Sequence[Commit]) -> Commit:
    """Who wrote most of the commits (the first of them, where that is open): name and date of their latest one."""
    count: dict[str, list[Commit]] = {}
    for each in commits:
        count.setdefault(each.person[1].casefold(), []).append(each)
    return max(count.values(), key=len)[-1]


def _header(root: Path, settings: CommitSettings, parsed: Sequence[Message], before: str, after: str) -> str:
    staged = read_staged(root, Sides(before, after))
    kind = guess_type(staged.files, staged.symbols, settings.types).value
    scope = guess_scope(staged.files, staged.symbols, settings, lambda: habits_of(root, before)).value
    best = _best(parsed, settings, kind)
    if best is not None:
        kind = best.type.lower()
        scope = best.scope or scope
        subject = best.subject
    else:
        made = skeleton(kind, scope, staged, settings).split("\n", 1)[0]
        subject = parse(made).subject or made
    head = f"{kind}({scope})" if scope else kind
    marked = "!" if any(each.breaking for each in parsed) else ""
    room = settings.header_length - len(head) - len(marked) - 2
    header = f"{head}{marked}: {textwrap.shorten(subject, max(room, 12), placeholder=' ...')}"
    return header if not _errors(header, settings) else f"{_plain(settings)}: update {len(staged.files)} files"


def _plain(settings: CommitSettings) -> str:
    return "chore" if "chore" in settings.types else settings.types[0]


def conforms_to(message: Message, settings: CommitSettings) -> bool:
    """Whether the header of a message is a conventional one, and right."""
    return message.kind == "conventional" and not _errors(message.header, settings)


def _best(parsed: Sequence[Message], settings: CommitSettings, suggested: str) -> Message | None:
    """The commit that speaks for all: of the suggested type if there is one, else of the weightiest; the first of
    several."""
    right = [each for each in parsed if conforms_to(each, settings)]
    rank = {name: number for number, name in enumerate((suggested, *_RANK))}
    return min(right, key=lambda each: rank.get(each.type.lower(), len(rank)), default=None)


def _item(message: Message, width: int) -> str:
    """One commit in a list: its subject, and what it says indented below."""
    lines = textwrap.wrap(
        message.header.strip() or "(no message)",
        width,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    text = _text(message)
    lines += [f"  {line}".rstrip() for line in text.split("\n")] if text else []
    return "\n".join(lines)


def _text(message: Message) -> str:
    """What a message says between header and footers."""
    return "\n".join(line for _, line in message.body).strip("\n")


def _footers(parsed: Sequence[Message]) -> Iterator[str]:
    """Every footer once; the breaking ones first, as the specification shows them."""
    found = [footer for message in parsed for footer in message.footers]
    for footer in sorted(found, key=lambda each: not each.breaking):
        value = "\n  ".join(line.strip() for line in footer.value.split("\n") if line.strip())
        yield f"{footer.token}: {value}"


def _clean(text: str) -> str:
    return _CONTROL.sub(" ", text.replace("\r\n", "\n"))
