"""Prints the tools, and what they cost in tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tooling.cli.report import Report, aligned
from tooling.mcp.paging import MORE, MORE_HELP, MORE_SCHEMA, MORE_TITLE
from tooling.mcp.tools.arguments import description_of
from tooling.mcp.tools.call import input_schema, output_schema
from tooling.mcp.tools.table import TOOLS, offered

if TYPE_CHECKING:
    import argparse


_CHARACTERS_PER_TOKEN = 4


def run(arguments: argparse.Namespace) -> Report:
    """List all tools, offered or not."""
    offer = offered(writes=arguments.allow_writes, only=arguments.only)
    rows = list[dict[str, Any]]()
    for tool in TOOLS:
        schema, text, withheld = input_schema(tool), description_of(tool), offer.withheld.get(tool.name, "")
        seen = json.dumps({"name": tool.name, "description": text, "input_schema": schema})
        row = {
            "name": tool.name,
            "title": tool.title,
            "help": text,
            "command": " ".join([tool.program, *tool.words]),
            "writes": tool.writes,
            "offered": not withheld,
            "withheld": withheld,
            "tokens": len(seen) // _CHARACTERS_PER_TOKEN,
            "input_schema": schema,
            "output_schema": output_schema(tool),
        }
        rows.append(row)
    own = {"name": MORE, "description": MORE_HELP, "input_schema": MORE_SCHEMA}
    rows.append(
        {
            "name": MORE,
            "title": MORE_TITLE,
            "help": MORE_HELP,
            "command": "(this server)",
            "writes": False,
            "offered": True,
            "withheld": "",
            "tokens": len(json.dumps(own)) // _CHARACTERS_PER_TOKEN,
            "input_schema": MORE_SCHEMA,
            "output_schema": None,
        }
    )
    tokens = sum(row["tokens"] for row in rows if row["offered"])
    table = aligned(
        [
            (row["name"], row["command"], f"{row['tokens']} tokens", "writes" if row["writes"] else "", row["withheld"])
            for row in rows
        ]
    )
    count = sum(row["offered"] for row in rows)
    return Report(
        command="areal-mcp --list",
        changing=False,
        text=f"{table}\n{count} tools offered; an agent that is shown all of them reads about {tokens} tokens\n",
        data={"tools": rows, "tokens": tokens},
    )
