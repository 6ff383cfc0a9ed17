"""Two locks: what changed its version. Per extra, since one lock may hold several versions of one package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from tooling.upgrade.locks.records import VersionChange

if TYPE_CHECKING:
    from tooling.upgrade.declarations.lockfiles import Lock, LockedPackage

Key = tuple[str, str]


def compare_locks(old: Lock, new: Lock) -> tuple[VersionChange, ...]:
    """Changes by name; those that are alike for several extras are one. Local labels (+cpu) are not versions."""
    before, after = _versions(old), _versions(new)
    changes: dict[tuple[str, str, str], set[str]] = {}
    for name, extra in {*before, *after}:
        one, other = _text(before.get((name, extra), set())), _text(after.get((name, extra), set()))
        if one != other:
            changes.setdefault((name, one, other), set()).add(extra)
    return tuple(sorted(VersionChange(*key, tuple(sorted(extras - {""}))) for key, extras in changes.items()))


def _versions(lock: Lock) -> dict[Key, set[str]]:
    """A package that several extras bring counts for each; the extra is "" where the lock does not tell."""
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
    return ", ".join(sorted(versions, key=_order))


def _order(text: str) -> tuple[Version, str]:
    try:
        return Version(text.split(" ", maxsplit=1)[0]), text
    except InvalidVersion:
        return Version("0"), text


def versions(lock: Lock) -> dict[str, str]:
    """Name to version; several are joined."""
    found: dict[str, set[str]] = {}
    for package in lock.packages:
        found.setdefault(package.name, set()).add(_version(package))
    return {name: _text(each) for name, each in sorted(found.items())}
