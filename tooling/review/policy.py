"""Reads what a repository says of its reviews, and the table of domains: whose code is whose, and which signals count.

    [tool.areal.review]
    base = "main"                        # what changes are compared with
    disable = ["reward-unguarded"]       # rules that do not hold here
    exclude = ["templates/**"]           # files that rules do not read
    domains = "tooling/domains.toml"     # its own table of domains
    frozen = ["oldpackage"]              # packages that new code must not import
    baseline = ".areal/review.json"      # findings that were accepted
    fail_on = "high"

It is read from the base, so that a change cannot switch off its own review. The built-in table is domains.toml.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tooling.cli.errors import UsageError
from tooling.cli.settings import Settings, Strings, parse_settings, section
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.review.rules.catalogue import FORMER, RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side


BUILT_IN = Path(__file__).with_name("domains.toml")


@dataclass(frozen=True, slots=True)
class Signal:
    """Code that deserves a question of its own."""

    name: str
    pattern: re.Pattern[str]
    question: str


@dataclass(frozen=True, slots=True)
class Domain:
    """Files that one expert knows."""

    name: str
    title: str
    expert: str
    weight: int
    globs: tuple[re.Pattern[str], ...]
    questions: tuple[str, ...] = ()
    signals: tuple[Signal, ...] = ()

    def owns(self, path: str) -> bool:
        """Whether a glob matches."""
        return any(glob.fullmatch(path) for glob in self.globs)


ELSEWHERE = Domain("other", "Files without an owner", "simple-code-reviewer", 1, ())


@dataclass(frozen=True, slots=True)
class Touched:
    """A domain with its changed files."""

    domain: Domain
    paths: tuple[str, ...]
    signals: Mapping[str, tuple[str, ...]]
    """Signal -> the first places that raise it, "path:line"."""


def glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob. `**` stands for any folders, also none; `*` and `?` stay within one."""
    text = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"/\*\*", "/.*")
    return re.compile(text.replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]"), re.DOTALL)


def read_domains(content: bytes, where: str) -> tuple[Domain, ...]:
    """Read the domains of a table. Raises UsageError that names what is wrong."""
    try:
        table = parse_toml(content)
        return tuple(
            Domain(
                name=row["name"],
                title=row["title"],
                expert=row["expert"],
                weight=int(row["weight"]),
                globs=tuple(glob(each) for each in row["globs"]),
                questions=tuple(row.get("questions", ())),
                signals=tuple(
                    Signal(each["name"], re.compile(each["pattern"]), each["question"])
                    for each in row.get("signals", ())
                ),
            )
            for row in table["domain"]
        )
    except TOMLError as error:
        raise UsageError(f"is not TOML: {error}", where=where, fix="correct the file") from error
    except (KeyError, TypeError, re.error) as error:
        raise UsageError(
            f"is not a table of domains: {error}", where=where, fix=f"write it as {BUILT_IN.name}"
        ) from error


@functools.cache
def built_in() -> tuple[Domain, ...]:
    """Return the table of domains.toml."""
    return read_domains(BUILT_IN.read_bytes(), BUILT_IN.name)


def owner(path: str, domains: tuple[Domain, ...]) -> Domain:
    """Return the first domain that owns a path; ELSEWHERE if none does."""
    return next((each for each in domains if each.owns(path)), ELSEWHERE)


def touched(comparison: Comparison, domains: tuple[Domain, ...]) -> tuple[Touched, ...]:
    """Return the domains of a change, in the order of the table."""
    paths: dict[str, list[str]] = {}
    owners: dict[str, Domain] = {}
    for file in comparison.files:
        domain = owner(file.path, domains)
        owners[domain.name] = domain
        paths.setdefault(domain.name, []).append(file.path)
    order = [*(each.name for each in domains), ELSEWHERE.name]
    return tuple(
        Touched(owners[name], tuple(paths[name]), _signals(comparison, owners[name], paths[name]))
        for name in sorted(owners, key=order.index)
    )


def _signals(comparison: Comparison, domain: Domain, paths: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for path in paths if domain.signals else ():
        text = comparison.head.text(path)
        lines = text.split("\n") if text is not None else []
        for number in sorted(comparison.by_path[path].added):
            line = lines[number - 1] if number <= len(lines) else ""
            for signal in domain.signals:
                if signal.pattern.search(line):
                    found.setdefault(signal.name, []).append(f"{path}:{number}")
    return {name: tuple(places[:5]) for name, places in found.items()}


FROZEN = frozenset({"realhf"})
"""Where nothing is said: the one package of this field's repositories that its successor left behind."""


class ReviewSettings(Settings):
    """The table as it is written."""

    base: str = ""
    disable: Strings = ()
    exclude: Strings = ()
    domains: str = ""
    frozen: Strings = tuple(FROZEN)
    baseline: str = ""
    fail_on: Literal["low", "medium", "high", "critical", "never"] = "high"


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of a repository."""

    base: str = ""
    disable: frozenset[str] = frozenset()
    exclude: tuple[re.Pattern[str], ...] = ()
    domains: tuple[Domain, ...] = ()
    frozen: frozenset[str] = FROZEN
    baseline: str = ""
    fail_on: str = "high"

    def reads(self, path: str) -> bool:
        """Whether rules look at a file."""
        return not any(each.fullmatch(path) for each in self.exclude)


def read_policy(side: Side) -> Policy:
    """Read the policy of one side. Raises UsageError for settings that make no sense."""
    text = side.text("pyproject.toml") or ""
    try:
        parse_toml(text.encode())
    except TOMLError:
        text = ""  # a repository whose manifest is broken can be reviewed all the same
    said = parse_settings(ReviewSettings, text.encode(), "review")
    disabled = frozenset(FORMER.get(name, name) for name in said.disable)
    for name in sorted(disabled):
        if name not in RULES:
            fix = did_you_mean(name, RULES)
            raise UsageError(f"unknown rule {name!r}", where=f"{section('review')} disable", fix=fix)
    content = side.text(said.domains) if said.domains else None
    if said.domains and content is None:
        where = f"{section('review')} domains = {said.domains!r}"
        raise UsageError("no such file", where=where, fix="name a table of domains")
    return Policy(
        base=said.base,
        disable=disabled,
        exclude=tuple(glob(each) for each in said.exclude),
        domains=read_domains(content.encode(), said.domains) if content is not None else built_in(),
        frozen=frozenset(said.frozen),
        baseline=said.baseline,
        fail_on=said.fail_on,
    )
