"""Questions about access paths."""

from __future__ import annotations

from tooling.upgrade.uses import (
    AccessPath,
    Attribute,
    Awaited,
    Called,
    ClientClass,
    Either,
    Entered,
    InstanceOf,
    ItemOf,
    Iterated,
    Name,
    Parametrised,
    SuperOf,
)

_STEPS = (Attribute, Called, InstanceOf, Awaited, Iterated, ItemOf, Entered)


def package_root(access_path: AccessPath) -> str:
    """The dotted path that an access path starts from; of several the first."""
    while isinstance(access_path, _STEPS):
        access_path = access_path.base
    if isinstance(access_path, Name):
        return access_path.dotted
    inner = _members(access_path)
    return next((found for found in map(package_root, inner) if found), "")


def _members(access_path: AccessPath) -> tuple[AccessPath, ...]:
    if isinstance(access_path, Either):
        return access_path.members
    if isinstance(access_path, SuperOf | ClientClass):
        return access_path.bases
    return access_path.arguments if isinstance(access_path, Parametrised) else ()


def touches_private(access_path: AccessPath) -> bool:
    """Whether a private part (`_x`, not `__x__`) is named here: in the dotted path, or as the last attribute."""
    if isinstance(access_path, Attribute):
        return _is_private(access_path.name)
    if isinstance(access_path, Name):
        return any(_is_private(part) for part in access_path.dotted.split("."))
    return (
        any(touches_private(member) for member in _members(access_path)) if isinstance(access_path, Either) else False
    )


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
