"""Overrides that hide a conflict: what new releases ask for, against what the project overrides it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tooling.upgrade.declarations.records import Declaration, Declarations, Kind
from tooling.upgrade.declarations.requirement_text import normalised

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Contradiction:
    """An override that gives a release what it says it cannot work with."""

    declaration: Declaration
    version: str
    """What the override makes of it; "" where a range meets a range."""
    requirer: str
    requirer_version: str
    requirement: str
    """As its metadata has it."""


def contradicted_overrides(
    declarations: Declarations,
    metadata: Mapping[tuple[str, str], Sequence[str]],
    locked: Mapping[str, str],
) -> tuple[Contradiction, ...]:
    """metadata: (distribution, version) to its Requires-Dist; locked: name to resolved version (`LockResult.versions`).

    Requirements of extras are left out: whether they are used is not known here."""
    overrides = {each.distribution: each for each in declarations.found if each.kind is Kind.OVERRIDE}
    found = []
    for (requirer, requirer_version), requirements in metadata.items():
        for requirement in _applicable(requirements):
            override = overrides.get(normalised(requirement.name))
            if override is None:
                continue
            version = _version(override, locked)
            if version and not requirement.specifier.contains(version, prereleases=True):
                text = f"{requirement.name}{requirement.specifier}"
                found.append(Contradiction(override, version, requirer, requirer_version, text))
    return tuple(found)


def _applicable(requirements: Iterable[str]) -> Iterable[Requirement]:
    for text in requirements:
        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
        except (InvalidRequirement, UndefinedEnvironmentName):
            continue
        yield requirement


def _version(override: Declaration, locked: Mapping[str, str]) -> str:
    if override.is_pinned:
        return override.specifier.strip().lstrip("= ")
    try:
        inside = SpecifierSet(override.specifier)
        resolved = Version(locked.get(override.distribution, ""))
    except (InvalidSpecifier, InvalidVersion):
        return ""
    return str(resolved) if inside.contains(resolved, prereleases=True) else ""
