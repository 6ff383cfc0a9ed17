"""A resolver's complaint, read into who-requires-what records.

Two layouts are known: `cause:` lines, and the older tree that is drawn with boxes. Verdicts never depend on this:
whether a resolution failed is the exit code's to say, and the raw words stay beside the records.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tooling.upgrade.declarations.records import Kind
from tooling.upgrade.declarations.requirement_text import normalised
from tooling.upgrade.locks.records import Cause, Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.upgrade.declarations.records import Declaration, Declarations

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_BOUNDS = r"(?:==|>=|<=|<|>|!=|~=)[^\s,|]+"
_SPECIFIER = rf"{_BOUNDS}(?:,\s?{_BOUNDS}|\|\|{_BOUNDS})*"
_PACKAGE = rf"{_NAME}(?:\[[^\]]*\])?(?:\{{[^}}]*\}})?"
_DEPENDS = re.compile(
    rf"(?P<who>your project|you|{_PACKAGE})(?P<version>{_SPECIFIER})?"
    rf"\s+(?:depends? on|requires?)\s+(?P<what>{_PACKAGE})(?P<specifier>{_SPECIFIER})?"
)
_ALSO = re.compile(
    rf"\s+and\s+(?P<what>{_PACKAGE})(?P<specifier>{_SPECIFIER})(?=,?\s|\.\s|\.?$)(?!\s+(?:depends?|requires?)\b)"
)
_ONE_OF = re.compile(rf"one of: (?P<name>{_PACKAGE})(?P<first>{_SPECIFIER})(?P<rest>(?: (?P=name){_SPECIFIER})*)")
_MISSING = (
    re.compile(rf"there (?:is|are) no versions? of (?P<what>{_PACKAGE}(?:{_SPECIFIER})?)"),
    re.compile(rf"(?P<what>{_PACKAGE}) was not found in the (?:package registry|provided package locations)"),
)
_UNBUILT = re.compile(rf"Wheels are required for `?(?P<what>{_NAME})`? because building")
_TREE = re.compile(r"^[\s\u2500-\u257f\u25b6\u00d7]+", re.MULTILINE)
_CLAUSES = re.compile(r"[Bb]ecause\s+(?P<said>.*?)(?=,? we can conclude|\bAnd because\b|$)", re.DOTALL)


def parse_conflict(raw: str, project: str, declarations: Declarations) -> Conflict:
    """The records of a failed resolution. project: the project's own distribution name."""
    text = _ONE_OF.sub(_alternatives, re.sub(r"\s+", " ", _TREE.sub(" ", raw)))
    causes: dict[Cause, None] = {}
    for clauses in _CLAUSES.finditer(text):
        for cause in _causes(clauses["said"], normalised(project), declarations):
            causes.setdefault(cause)
    missing = dict.fromkeys(hit["what"].rstrip(".") for pattern in _MISSING for hit in pattern.finditer(text))
    unbuilt = dict.fromkeys(normalised(hit["what"]) for hit in _UNBUILT.finditer(text))
    return Conflict(tuple(causes), raw.strip(), tuple(missing), tuple(unbuilt))


def _causes(said: str, project: str, declarations: Declarations) -> Iterable[Cause]:
    for hit in _DEPENDS.finditer(said):
        yield _cause(hit, hit["what"], hit["specifier"], project, declarations)
        position = hit.end()
        while also := _ALSO.match(said, position):
            yield _pin(also, project, declarations) or _cause(
                hit, also["what"], also["specifier"], project, declarations
            )
            position = also.end()


def _alternatives(hit: re.Match[str]) -> str:
    """ "one of: a>=1,<2 a>3" as "a>=1,<2||>3": one requirement."""
    return hit["name"] + hit["first"] + hit["rest"].replace(f" {hit['name']}", "||")


def _pin(also: re.Match[str], project: str, declarations: Declarations) -> Cause | None:
    """A clause without requirer is one of the project's own constraints, if it says the same."""
    distribution, specifier = normalised(_bare(also["what"])), also["specifier"].rstrip(".")
    declared = declaration_of(distribution, specifier, declarations)
    if declared is None or declared.kind is not Kind.CONSTRAINT:
        return None
    return Cause(project, "", distribution, specifier, own=True, where=declared.where)


def _cause(hit: re.Match[str], what: str, specifier: str | None, project: str, declarations: Declarations) -> Cause:
    who = _bare(hit["who"])
    own = who in {"your project", "you", project}
    distribution, bounds = normalised(_bare(what)), (specifier or "").rstrip(".").replace(" ", "").replace("||", " or ")
    where = _where(distribution, bounds, declarations) if own else ""
    return Cause(hit["who"].split("{")[0], hit["version"] or "", distribution, bounds, own, where)


def _bare(text: str) -> str:
    name = text.split("[", maxsplit=1)[0].split("{", maxsplit=1)[0]
    return name if " " in name else normalised(name)


def _where(distribution: str, specifier: str, declarations: Declarations) -> str:
    found = declaration_of(distribution, specifier, declarations)
    return found.where if found else ""


def declaration_of(distribution: str, specifier: str, declarations: Declarations) -> Declaration | None:
    """The declaration that says this, however it is spelt."""
    wanted = _set(specifier)
    for each in declarations.of(distribution):
        if wanted is not None and _set(each.specifier) == wanted:
            return each
    return None


def _set(specifier: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(specifier)
    except InvalidSpecifier:
        return None
