"""Find the version in use now, and the variants that a declaration counts for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from tooling.python.versions import version_or_none
from tooling.upgrade.declarations.declaration import DeclarationKind, SpecifierStyle, as_pep508
from tooling.upgrade.declarations.lockfiles import Lock, read_lock
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
    """The old version."""

    distribution: str
    version: str
    origin: str
    """"lock", "constraint", "override", "pin", "image", "variable", "range" or "upper bound"."""
    where: str
    """"path:line", or the lock's path."""
    variant: str = ""
    others: tuple[str, ...] = ()
    """Other versions that the same source holds, for other extras or platforms."""


def baseline(
    distribution: str, declarations: Declarations, policy: UpgradePolicy, root: Path, *, variant: str = ""
) -> Baseline | None:
    """Return the version that a variant has ("": the first that says something); None where nothing names one."""
    for name, lock in locks(policy, root, variant):
        versions = sorted({each.version for each in lock.of(distribution) if each.version}, key=_order)
        if versions:
            origin = "constraint" if lock.path.endswith((".txt", ".in")) else "lock"
            return Baseline(distribution, versions[-1], origin, lock.path, name, tuple(versions[:-1]))
    ranked = sorted(_candidates(distribution, declarations, policy, variant), key=lambda pair: pair[0])
    return ranked[0][1] if ranked else None


def locks(policy: UpgradePolicy, root: Path, variant: str = "") -> Iterable[tuple[str, Lock]]:
    """(variant, lock) of the lock files that exist. Raises UsageError for damaged ones."""
    for each in policy.variants:
        if variant in {"", each.name} and each.lock and (root / each.lock).is_file():
            yield each.name, read_lock(each.lock, (root / each.lock).read_bytes())


_RANK = {
    DeclarationKind.CONSTRAINT: 1,
    DeclarationKind.OVERRIDE: 2,
    DeclarationKind.REQUIREMENT: 3,
    DeclarationKind.SOURCE: 3,
    DeclarationKind.COMMAND: 4,
}
_ORIGIN = {
    DeclarationKind.CONSTRAINT: "constraint",
    DeclarationKind.OVERRIDE: "override",
    DeclarationKind.IMAGE: "image",
    DeclarationKind.VARIABLE: "variable",
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
        version, origin, exactness = read
        # Files of a variant first, then by depth. A line for one platform only comes after one for all.
        depth = 0 if is_claimed(each.path, policy) else 1 + each.path.count("/")
        rank = (
            exactness,
            _RANK.get(each.kind, 5),
            2 * depth + bool("darwin" in each.marker or "win32" in each.marker),
            each.path,
            each.line,
        )
        yield rank, Baseline(distribution, version, origin, each.where, variant)


def _version(declaration: Declaration) -> tuple[str, str, int] | None:
    """(version, origin, 0 if exact): the lowest one of a range."""
    specifier = declaration.specifier
    if declaration.is_pinned:
        version = specifier.strip().lstrip("= ").split("+")[0]
        return (version, _ORIGIN.get(declaration.kind, "pin"), 0) if version_or_none(version) else None
    lows = []
    highs = []
    for clause in CLAUSE.finditer(as_pep508(specifier, declaration.style) or specifier):
        version = clause["version"].removesuffix(".*")
        if not version_or_none(version):
            continue
        if clause["operator"] in {">=", ">", "~=", "==", "==="}:
            lows.append(version)
        elif clause["operator"] == "<=":
            highs.append(version)
    if lows:
        return max(lows, key=_order), "range", 1
    return (min(highs, key=_order), "upper bound", 2) if highs else None


def _order(text: str) -> Version:
    return version_or_none(text) or Version("0")
