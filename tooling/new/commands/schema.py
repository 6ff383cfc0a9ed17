"""Prints a JSON schema (draft 2020-12): of the answers of a kind, for --answers and for agents; or, as
`areal-new schema output`, of what --json prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.cli.report import Report
from tooling.new.cli.lookup import find_root

if TYPE_CHECKING:
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation

OUTPUT = "output"
_FILE = Path(__file__).resolve().parent.parent / "cli" / "schemas" / "output.json"


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", help=f"a kind, or {OUTPUT!r} for the output of --json")


def run(invocation: Invocation) -> Report:
    """Print the schema."""
    schema = _schema(invocation)
    return Report(command="schema", changing=False, text=json.dumps(schema, indent=2), data={"schema": schema})


def _schema(invocation: Invocation) -> dict[str, Any]:
    if invocation.arguments.kind == OUTPUT:
        schema: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
        return schema
    from tooling.kit.template.kinds import find_kind
    from tooling.kit.template.manifest import load_manifest
    from tooling.kit.template.questions import json_schema, load_questions

    kind = find_kind(find_root(invocation.arguments.repo), invocation.arguments.kind)
    return json_schema(kind.name, load_questions(kind.folder), load_manifest(kind.folder).options)
