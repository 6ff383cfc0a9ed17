"""The tables of registry names, read without importing what the names stand for. For listings and early name checks."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from areal.utils.suggest import did_you_mean

MODULES: Final[dict[str, str]] = {
    "dataset": "areal.dataset.registry",
    "model": "areal.models.registry",
    "reward": "areal.reward.registry",
    "workflow": "areal.workflow.registry",
}
"""Kind of extension to the module that holds its table (or tables)."""

_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*|\.[A-Za-z_]\w*)")


def table(kind: str) -> dict[str, str]:
    """Name to target ("module:object") of one kind; a name with several targets lists them separated by ", "."""
    module = importlib.import_module(MODULES[kind])
    merged: dict[str, list[str]] = {}
    for attribute, value in vars(module).items():
        if not attribute.isupper() or not isinstance(value, Mapping):
            continue
        for name, target in value.items():
            targets = target.values() if isinstance(target, Mapping) else [target]
            known = merged.setdefault(name, [])
            known += [item for item in map(str, targets) if item not in known]
    return {name: ", ".join(merged[name]) for name in sorted(merged)}


def objectives() -> dict[str, dict[str, Any]]:
    """Name of each objective preset to its paper, formula, note and defaults."""
    from areal.algorithm.presets import describe_presets

    return {row["name"]: {key: value for key, value in row.items() if key != "name"} for row in describe_presets()}


def preferences() -> dict[str, dict[str, Any]]:
    """Losses over pairs by name: formula, paper and defaults."""
    from areal.algorithm.preference import PREFERENCES

    return {
        name: {
            "formula": entry.formula,
            "paper": entry.source,
            "defaults": {
                key: value
                for key, value in asdict(entry).items()
                if key not in ("formula", "source", "pair_losses") and value is not None
            },
        }
        for name, entry in PREFERENCES.items()
    }


def check_name(kind: str, name: str) -> str | None:
    """Return what is wrong with a registry name, None when it is known or an importable-looking path.

    Imports nothing it names.
    """
    known = table(kind)
    if name in known:
        return None
    if _DOTTED_PATH.fullmatch(name):
        package = re.split(r"[.:]", name, maxsplit=1)[0]
        if importlib.util.find_spec(package) is None:
            return f"{kind} {name!r}: there is no package {package!r}; install it or run where it can be imported"
        return None
    hint = did_you_mean(name, known)
    return (
        f"unknown {kind} {name!r}; {f'{hint} ' if hint else ''}known names are {', '.join(known) or '(none)'}, "
        f'and any importable path such as "package.module:object" works too'
    )
