"""List what a configuration can name: datasets, rewards, workflows, environments, models, objectives and losses.

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

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

KINDS = ("datasets", "rewards", "workflows", "environments", "models", "objectives", "preferences")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal list`."""
    parser.add_argument("kind", choices=KINDS, nargs="?", help="only this kind")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Read the tables."""
    from areal.trainer.configuration.project import use_project
    from areal.trainer.configuration.validation import table

    use_project(Path.cwd())
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    data: dict[str, Any] = {}
    for kind in kinds:
        if kind == "objectives":
            from areal.algorithm.objective import describe_presets

            data[kind] = {row["name"]: {key: row[key] for key in row if key != "name"} for row in describe_presets()}
        elif kind == "preferences":
            data[kind] = _preferences()
        else:
            data[kind] = table(kind.removesuffix("s"))
    blocks = []
    for kind, entries in data.items():
        width = max(map(len, entries), default=0)
        lines = []
        for name, entry in entries.items():
            known = entry if isinstance(entry, str) else entry["paper"]
            lines.append(f"  {name:<{width}}  {known}")
            if not isinstance(entry, str):
                indent = " " * (width + 4)
                lines += textwrap.wrap(
                    entry["formula"], 118, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
                )
        blocks.append("\n".join([kind, *(lines or ["  (none)"])]))
    if "models" in kinds:
        from areal.models.registry import UNPROVEN

        data["unproven"] = list(UNPROVEN)
        if UNPROVEN:
            blocks.append(f"not proven, their tests have not passed: {', '.join(UNPROVEN)}")
    return CommandReport(text="\n\n".join(blocks), data=data)


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
