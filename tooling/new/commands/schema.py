"""Prints a JSON schema (draft 2020-12): of the answers of a kind, for --answers and for agents; or, as
`areal-new schema output`, of what --json prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.report import Report
from tooling.new.command_line import find_root

if TYPE_CHECKING:
    from tooling.cli.parser import Parser
    from tooling.new.change import Invocation

OUTPUT = "output"


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", help=f"a kind, or {OUTPUT!r} for the output of --json")


def run(invocation: Invocation) -> Report:
    """Print the schema."""
    if invocation.arguments.kind == OUTPUT:
        file = Path(__file__).resolve().parent.parent / "schemas" / "output.json"
        schema = json.loads(file.read_text(encoding="utf-8"))
    else:
        from tooling.kit.template.kinds import find_kind
        from tooling.kit.template.manifest import load_manifest
        from tooling.kit.template.questions import json_schema, load_questions

        kind = find_kind(find_root(invocation.repo), invocation.arguments.kind)
        schema = json_schema(kind.name, load_questions(kind.folder), load_manifest(kind.folder).options)
    return Report(command="schema", changing=False, text=json.dumps(schema, indent=2), data={"schema": schema})
