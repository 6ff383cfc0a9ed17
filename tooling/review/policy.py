"""What a repository says of its reviews, in its pyproject.toml:

    [tool.areal.review]
    base = "main"                        # what changes are compared with
    disable = ["reward-unguarded"]       # rules that do not hold here
    exclude = ["templates/**"]           # files that rules do not read
    domains = "tooling/domains.toml"     # its own table of domains
    frozen = ["oldpackage"]              # packages that new code must not import
    baseline = ".areal/review.json"      # findings that were accepted
    fail_on = "high"

It is read from the base, so that a change cannot switch off its own review.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.review.domains import Domain, built_in, glob, read_domains
from tooling.review.rules.catalogue import RULES

if TYPE_CHECKING:
    import re

    from tooling.review.repository.side import Side

FROZEN = frozenset({"realhf"})
"""Where nothing is said: the one package of this field's repositories that its successor left behind."""
_KNOWN = {
    "base": str,
    "disable": list,
    "exclude": list,
    "domains": str,
    "frozen": list,
    "baseline": str,
    "fail_on": str,
}


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
    """The policy of one side. Raises UsageError for settings that mean nothing."""
    text = side.text("pyproject.toml")
    try:
        table = parse_toml((text or "").encode()).get("tool", {}).get("areal", {}).get("review", {})
    except TOMLError:
        table = {}  # a repository whose manifest is broken can be reviewed all the same
    _check(table)
    named = table.get("domains", "")
    content = side.text(named) if named else None
    if named and content is None:
        raise UsageError(
            "no such file", where=f"[tool.areal.review] domains = {named!r}", fix="name a table of domains"
        )
    return Policy(
        base=table.get("base", ""),
        disable=frozenset(table.get("disable", ())),
        exclude=tuple(glob(each) for each in table.get("exclude", ())),
        domains=read_domains(content.encode(), named) if content is not None else built_in(),
        frozen=frozenset(table.get("frozen", FROZEN)),
        baseline=table.get("baseline", ""),
        fail_on=table.get("fail_on", "high"),
    )


def _check(table: dict[str, Any]) -> None:
    for key, value in table.items():
        where = f"[tool.areal.review] {key}"
        if key not in _KNOWN:
            raise UsageError(
                "no such setting", where=where, fix=did_you_mean(key, _KNOWN) or f"known: {', '.join(_KNOWN)}"
            )
        if not isinstance(value, _KNOWN[key]):
            raise UsageError(f"must be a {_KNOWN[key].__name__}", where=where, fix="see tooling/review/policy.py")
    for name in table.get("disable", ()):
        if name not in RULES:
            raise UsageError(f"no rule {name!r}", where="[tool.areal.review] disable", fix=did_you_mean(name, RULES))
