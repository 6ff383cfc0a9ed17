"""Read the resolver's conflicts, find the requirement whose relaxation resolves one, and overrides that hide one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tooling.python.versions import version_or_none
from tooling.upgrade.declarations.declaration import Declaration, DeclarationKind, Declarations
from tooling.upgrade.declarations.find import read_declarations
from tooling.upgrade.locks.result import Cause, Conflict, RelaxProposal, versions
from tooling.upgrade.manifests.specifiers import allows, changed, specifier_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.declarations.lockfiles import Lock
    from tooling.upgrade.manifests.requests import VersionRequest


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
    """Return the records of a failed resolution. project: the project's own distribution name."""
    text = _ONE_OF.sub(_alternatives, re.sub(r"\s+", " ", _TREE.sub(" ", raw)))
    causes: dict[Cause, None] = {}
    for clauses in _CLAUSES.finditer(text):
        for cause in _causes(clauses["said"], canonicalize_name(project), declarations):
            causes.setdefault(cause)
    missing = dict.fromkeys(hit["what"].rstrip(".") for pattern in _MISSING for hit in pattern.finditer(text))
    unbuilt = dict.fromkeys(canonicalize_name(hit["what"]) for hit in _UNBUILT.finditer(text))
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
    """Match a clause without requirer with one of the project's own constraints, if it says the same."""
    distribution, specifier = canonicalize_name(_bare(also["what"])), also["specifier"].rstrip(".")
    declared = declaration_of(distribution, specifier, declarations)
    if declared is None or declared.kind is not DeclarationKind.CONSTRAINT:
        return None
    return Cause(project, "", distribution, specifier, own=True, where=declared.where)


def _cause(hit: re.Match[str], what: str, specifier: str | None, project: str, declarations: Declarations) -> Cause:
    who = _bare(hit["who"])
    own = who in {"your project", "you", project}
    distribution = canonicalize_name(_bare(what))
    bounds = (specifier or "").rstrip(".").replace(" ", "").replace("||", " or ")
    declared = declaration_of(distribution, bounds, declarations) if own else None
    where = declared.where if declared else ""
    who = "this repository" if hit["who"] in {"your project", "you"} else hit["who"].split("{")[0]
    return Cause(who, hit["version"] or "", distribution, bounds, own, where)


def _bare(text: str) -> str:
    name = text.split("[", maxsplit=1)[0].split("{", maxsplit=1)[0]
    return name if " " in name else canonicalize_name(name)


def declaration_of(distribution: str, specifier: str, declarations: Declarations) -> Declaration | None:
    """Return the declaration that says this, however it is spelt."""
    wanted = specifier_set(specifier)
    alike = (each for each in declarations.of(distribution) if specifier_set(each.specifier) == wanted)
    return next(alike, None) if wanted is not None else None


_NEGOTIABLE = frozenset({DeclarationKind.REQUIREMENT, DeclarationKind.CONSTRAINT, DeclarationKind.OVERRIDE})


@dataclass(frozen=True, slots=True)
class Attempted:
    """One run of the resolver: a lock or a conflict."""

    lock: Lock | None = None
    conflict: Conflict | None = None
    content: bytes | None = None
    notes: tuple[str, ...] = ()


def missing_local_builds(conflict: Conflict) -> dict[str, str]:
    """Return the builds that no index has, by distribution: {"torch": "2.10.0+cpu"}.

    Local labels are not on the package index but on one of their builder's, which a machine may not be set up for."""
    found: dict[str, str] = {}
    for text in conflict.missing:
        name, _, version = text.rpartition("==")  # markers hold some of their own
        if "+" in version:
            found[canonicalize_name(_bare(name))] = version
    return found


def propose(
    plan: Plan,
    conflict: Conflict,
    declarations: Declarations,
    requests: Sequence[VersionRequest],
    attempt: Callable[[Mapping[str, bytes]], Attempted],
) -> tuple[RelaxProposal, bytes] | None:
    """Return a proposal with the file that carries it out, if exactly one own requirement (of a package that was not
    asked for) is among the causes, and without it everything resolves. attempt: resolves with some files' contents
    replaced."""
    asked = {each.distribution for each in requests}
    asked |= {each.distribution for each in declarations.found if each.build_of in asked}
    obstacles = {
        (each.distribution, each.specifier)
        for each in conflict.causes
        if each.own and each.specifier and each.distribution not in asked
    }
    if len(obstacles) != 1:
        return None
    declared = declaration_of(*next(iter(obstacles)), declarations)
    if declared is None or declared.kind not in _NEGOTIABLE:
        return None
    placed = _placed(plan, declared)
    if placed is None:
        return None
    text, now = placed
    relaxed = attempt({now.path: _replaced(text, now, "")})
    if relaxed.lock is None:
        return None
    version = versions(relaxed.lock).get(now.distribution, "")
    if not version or "," in version:
        return None
    outcome = changed(now.specifier, now.style, version.split(" ")[0])
    if outcome.problem or outcome.specifier == now.specifier:
        return None
    wanted = next((str(each) for each in conflict.causes if not each.own and each.distribution == now.distribution), "")
    why = f"it is the only requirement of the project in the way{': ' + wanted if wanted else ''}; {outcome.why}"
    proposal = RelaxProposal(declared, outcome.specifier, version, why)
    return proposal, _replaced(text, now, outcome.specifier)


def _placed(plan: Plan, declaration: Declaration) -> tuple[str, Declaration] | None:
    """Return the declaration as it stands after the plan, whose edits may have moved it."""
    content = plan.read(declaration.path)
    if content is None:
        return None
    text = content.decode("utf-8")
    for each in read_declarations(declaration.path, text):
        if replace(each, start=declaration.start, end=declaration.end, line=declaration.line) == declaration:
            return text, each
    return None


def _replaced(text: str, declaration: Declaration, specifier: str) -> bytes:
    return (text[: declaration.start] + specifier + text[declaration.end :]).encode("utf-8")


def contradicted_overrides(
    declarations: Declarations,
    metadata: Mapping[tuple[str, str], Sequence[str]],
    locked: Mapping[str, str],
) -> Iterator[str]:
    """Say of each override that gives a release what that says it cannot work with. metadata: (distribution, version)
    to its Requires-Dist; locked: name to resolved version (`LockResult.versions`).

    Requirements of extras are left out: whether they are used is not known here."""
    overrides = {each.distribution: each for each in declarations.found if each.kind is DeclarationKind.OVERRIDE}
    for (requirer, requirer_version), requirements in metadata.items():
        for stated in requirements:
            try:
                requirement = Requirement(stated)
                applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            except (InvalidRequirement, UndefinedEnvironmentName):
                continue
            override = overrides.get(canonicalize_name(requirement.name))
            if override is None or not applies:
                continue
            version = _version(override, locked)
            if version and not requirement.specifier.contains(version, prereleases=True):
                yield (
                    f"{override.where}: the override makes {override.distribution} {version}, and "
                    f"{requirer} {requirer_version} requires {requirement.name}{requirement.specifier}: "
                    "nothing but the override hides that"
                )


def _version(override: Declaration, locked: Mapping[str, str]) -> str:
    if override.is_pinned:
        return override.specifier.strip().lstrip("= ")
    resolved = version_or_none(locked.get(override.distribution, ""))
    return str(resolved) if resolved is not None and allows(override.specifier, resolved) else ""
