"""Questions about derivations."""

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


def package_root(derivation: AccessPath) -> str:
    """The dotted path that a derivation starts from; of several the first."""
    while isinstance(derivation, _STEPS):
        derivation = derivation.base
    if isinstance(derivation, Name):
        return derivation.dotted
    inner = _members(derivation)
    return next((found for found in map(package_root, inner) if found), "")


def _members(derivation: AccessPath) -> tuple[AccessPath, ...]:
    if isinstance(derivation, Either):
        return derivation.members
    if isinstance(derivation, SuperOf | ClientClass):
        return derivation.bases
    return derivation.arguments if isinstance(derivation, Parametrised) else ()


def touches_private(derivation: AccessPath) -> bool:
    """Whether a private part (`_x`, not `__x__`) is named here: in the dotted path, or as the last attribute."""
    if isinstance(derivation, Attribute):
        return _is_private(derivation.name)
    if isinstance(derivation, Name):
        return any(_is_private(part) for part in derivation.dotted.split("."))
    return any(touches_private(member) for member in _members(derivation)) if isinstance(derivation, Either) else False


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
