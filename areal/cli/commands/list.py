"""List what a configuration can name: datasets, rewards, workflows, models, objectives and losses over pairs.

Those of the project around the current folder (`areal init`) are among them. Imports none of them.

examples:
  areal list
  areal list objectives --json

Your own code needs no entry: an importable path such as "my_package.rewards:exact" works wherever a name does.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import Report

if TYPE_CHECKING:
    import argparse

KINDS = ("datasets", "rewards", "workflows", "models", "objectives", "preferences")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal list`."""
    parser.add_argument("kind", choices=KINDS, nargs="?", help="only this kind")


def run(arguments: argparse.Namespace) -> Report:
    """Read the tables."""
    from areal.trainer.configuration.project import use_project
    from areal.trainer.configuration.validation import table

    use_project(Path.cwd())
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    described = {"objectives": _objectives, "preferences": _preferences}
    data: dict[str, Any] = {
        kind: described[kind]() if kind in described else table(kind.removesuffix("s")) for kind in kinds
    }
    blocks = []
    for kind, entries in data.items():
        lines = [line for name, entry in entries.items() for line in _lines(name, entry, max(map(len, entries)))]
        blocks.append("\n".join([kind, *(lines or ["  (none)"])]))
    if "models" in kinds:
        from areal.models.registry import UNPROVEN

        data["unproven"] = list(UNPROVEN)
        if UNPROVEN:
            blocks.append(f"not proven, their tests have not passed: {', '.join(UNPROVEN)}")
    return Report(text="\n\n".join(blocks), data=data)


def _objectives() -> dict[str, dict[str, Any]]:
    """Name of each objective preset to its paper, formula, note and defaults."""
    from areal.algorithm.objective import describe_presets

    return {row["name"]: {key: value for key, value in row.items() if key != "name"} for row in describe_presets()}


def _preferences() -> dict[str, dict[str, Any]]:
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


def _lines(name: str, entry: Any, width: int) -> list[str]:
    if isinstance(entry, str):
        return [f"  {name:<{width}}  {entry}"]
    indent = " " * (width + 4)
    formula = textwrap.wrap(
        entry["formula"], 118, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return [f"  {name:<{width}}  {entry['paper']}", *formula]
