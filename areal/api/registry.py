"""Resolve a registry name, or any dotted path, to the object behind it.

A registry is one literal table per file, sorted, one entry per line, string targets (`areal/<kind>/registry.py`):

    REWARDS: Final[dict[str, str]] = {
        "gsm8k": "areal.reward.gsm8k:gsm8k_reward",
    }

Strings keep start-up light and cycles away. User code needs no registration: "my_package.rewards:mine" works anywhere
a name does.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from areal.api.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Mapping


def load(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """Return the object that `name` stands for.

    kind: for messages, e.g. "reward". name: a key of `table`, or a path "package.module:object" or
    "package.module.object".

    Raises RegistryError when the name is unknown (with the nearest known names) or the module has no such object. An
    error raised while importing the target is the target's own and passes through unchanged.
    """
    target = table.get(name, name)
    module_name, separator, attribute = target.partition(":")
    if not separator:
        module_name, _, attribute = target.rpartition(".")
    if not module_name or not attribute:
        raise unknown_name(kind, name, table)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only "the path itself does not exist" is a lookup miss; a broken import inside the target must surface as is.
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise unknown_name(kind, name, table, f" (no module {error.name!r})") from error
        raise
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            message = f"{kind} {name!r}: module {module_name!r} has no object {attribute!r}"
            raise RegistryError(message, fix=f"name an object that {module_name!r} defines")
        found = getattr(found, part)
    return found


def unknown_name(kind: str, name: str, table: Mapping[str, str], detail: str = "") -> RegistryError:
    """Return the error about a name that is not in a table, with the nearest ones; `detail` ends the message."""
    near = get_close_matches(name, table, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    known = f'{", ".join(sorted(table)) or "(none)"}; any importable path such as "package.module:object" works too'
    fix = f"write {near[0]!r}" if near else f"name a known {kind} or an importable path"
    return RegistryError(f"unknown {kind} {name!r}: {hint}known names are {known}{detail}", fix=fix)
