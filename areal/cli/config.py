"""Describe the configuration: a JSON schema for editors, or every key as Markdown.

examples:
  areal config schema --kind rl > areal.schema.json   # then `# yaml-language-server: $schema=areal.schema.json`
  areal config reference
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from areal.cli.output import Result

if TYPE_CHECKING:
    import argparse

HELP = "print a JSON schema or a reference of all configuration keys"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `areal config`."""
    parser.add_argument("what", choices=("schema", "reference"), help="schema: for editors; reference: for people")
    parser.add_argument(
        "--kind",
        choices=("rl", "sft", "dpo", "reward_model"),
        default="rl",
        help="which configuration the schema describes",
    )


def run(arguments: argparse.Namespace) -> Result:
    """Print the description."""
    from areal.trainer.configuration import reference

    if arguments.what == "reference":
        text = reference.markdown()
        return Result(text=text.rstrip("\n"), data={"markdown": text})
    schema = reference.json_schema(arguments.kind)
    return Result(text=json.dumps(schema, indent=2), data={"schema": schema})
