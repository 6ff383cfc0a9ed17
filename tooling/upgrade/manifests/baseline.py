"""Find the version in use now, and the variants that a declaration counts for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from tooling.python.versions import version_or_none
from tooling.upgrade.declarations.declaration import DeclarationKind, SpecifierStyle, as_pep508
from tooling.upgrade.declarations.lockfiles import read_lock
from tooling.upgrade.manifests.specifiers import CLAUSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declaration, Declarations
    from tooling.upgrade.policy.watched import UpgradePolicy, Variant


def variants_of(declaration: Declaration, declarations: Declarations, policy: UpgradePolicy) -> tuple[str, ...]:
    """Names of the variants it counts for; all of them for a file that none claims."""
    owners = policy.variants_of(declaration.path)
    if len(owners) < 2 or not declaration.group:
        return owners
    mine = [each for each in policy.variants if each.name in owners]
    holding = (each.name for each in mine if _installs(each, declaration.group, declarations.found, declaration.path))
    return tuple(holding) or owners


def is_claimed(path: str, policy: UpgradePolicy) -> bool:
    """Whether some variant names the file."""
    return any(path in variant.manifests or path == variant.lock for variant in policy.variants)


def is_excluded(path: str, policy: UpgradePolicy) -> bool:
    """Whether the policy says that the file's declarations are not the project's."""
    return any(path == each or path.startswith(f"{each}/") for each in policy.exclude)


def _installs(variant: Variant, group: str, declarations: Sequence[Declaration], path: str) -> bool:
    if not variant.extras and not variant.groups:
        return True
    reached = {*variant.extras, *variant.groups}
    waiting = list(reached)
    while waiting:
        current = waiting.pop()
        for each in declarations:
            if (
                each.path != path
                or each.group != current
                or each.kind is not DeclarationKind.REQUIREMENT
                or not each.extras
            ):
                continue
            # An extra may name others of the same project: "areal[train]". Extras of other packages have other names,
            # or do no harm here.
            waiting += [extra for extra in each.extras if extra not in reached]
            reached.update(each.extras)
    return group in reached


@dataclass(frozen=True, slots=True)
class Baseline:
    """The old version of a distribution."""

    version: str
    where: str
    """"path:line", or the lock's path."""
    others: tuple[str, ...] = ()
    """Other versions that the same lock holds, for other extras or platforms."""


def baseline(
    distribution: str, declarations: Declarations, policy: UpgradePolicy, root: Path, *, variant: str = ""
) -> Baseline | None:
    """Return the version that a variant has ("": the first that says something); None where nothing names one. Raises
    UsageError for a damaged lock."""
    for each in policy.variants:
        if variant in {"", each.name} and each.lock and (root / each.lock).is_file():
            lock = read_lock(each.lock, (root / each.lock).read_bytes())
            versions = sorted({locked.version for locked in lock.of(distribution) if locked.version}, key=by_version)
            if versions:
                return Baseline(versions[-1], each.lock, tuple(versions[:-1]))
    found = min(_candidates(distribution, declarations, policy, variant), key=lambda pair: pair[0], default=None)
    return found[1] if found is not None else None


_RANK = {
    DeclarationKind.CONSTRAINT: 1,
    DeclarationKind.OVERRIDE: 2,
    DeclarationKind.REQUIREMENT: 3,
    DeclarationKind.SOURCE: 3,
    DeclarationKind.COMMAND: 4,
}
Rank = tuple[int, int, int, str, int]


def _candidates(
    distribution: str, declarations: Declarations, policy: UpgradePolicy, variant: str
) -> Iterable[tuple[Rank, Baseline]]:
    for each in declarations.of(distribution):
        if (
            is_excluded(each.path, policy)
            or each.kind in {DeclarationKind.BUILD, DeclarationKind.HOOK}
            or each.style is SpecifierStyle.OPAQUE
            or each.build_of == distribution
        ):
            continue
        if variant and variant not in variants_of(each, declarations, policy):
            continue
        read = _version(each)
        if read is None:
            continue
        version, exactness = read
        # Files of a variant first, then by depth. A line for one platform only comes after one for all.
        depth = 0 if is_claimed(each.path, policy) else 1 + each.path.count("/")
        rank = (
            exactness,
            _RANK.get(each.kind, 5),
            2 * depth + bool("darwin" in each.marker or "win32" in each.marker),
            each.path,
            each.line,
        )
        yield rank, Baseline(version, each.where)


def _version(declaration: Declaration) -> tuple[str, int] | None:
    """(version, how far it is from exact): the lowest one of a range, else the highest that is allowed."""
    specifier = declaration.specifier
    if declaration.is_pinned:
        version = specifier.strip().lstrip("= ").split("+")[0]
        return (version, 0) if version_or_none(version) else None
    clauses = CLAUSE.finditer(as_pep508(specifier, declaration.style) or specifier)
    found = [(clause["operator"], clause["version"].removesuffix(".*")) for clause in clauses]
    lows = [text for sign, text in found if sign in {">=", ">", "~=", "==", "==="} and version_or_none(text)]
    highs = [text for sign, text in found if sign == "<=" and version_or_none(text)]
    if lows:
        return max(lows, key=by_version), 1
    return (min(highs, key=by_version), 2) if highs else None


def by_version(text: str) -> Version:
    """Return what orders versions; texts that are none come first."""
    return version_or_none(text) or Version("0")
