"""Describe the configuration: a JSON schema for editors, or every key as Markdown.

examples:
  areal config schema --kind rl > areal.schema.json   # then `# yaml-language-server: $schema=areal.schema.json`
  areal config reference
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal config`."""
    parser.add_argument("what", choices=("schema", "reference"), help="schema: for editors; reference: for people")
    parser.add_argument(
        "--kind",
        choices=("rl", "sft", "dpo", "reward_model"),
        default="rl",
        help="which configuration the schema describes",
    )


def run(arguments: argparse.Namespace) -> CommandReport:
    """Print the description."""
    from areal.trainer.configuration import reference

    if arguments.what == "reference":
        text = reference.markdown()
        return CommandReport(text=text.rstrip("\n"), data={"markdown": text})
    schema = reference.json_schema(arguments.kind)
    return CommandReport(text=json.dumps(schema, indent=2), data={"schema": schema})
