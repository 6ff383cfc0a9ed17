"""Prints the tools, and what they cost in tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tooling.cli.report import Report, aligned
from tooling.mcp.tools.call import input_schema, output_schema
from tooling.mcp.tools.table import every_tool, offered

if TYPE_CHECKING:
    import argparse

    from tooling.mcp.tools.records import Tool


_CHARACTERS_PER_TOKEN = 4


def run(arguments: argparse.Namespace) -> Report:
    """All tools, offered or not."""
    offer = offered(writes=arguments.allow_writes, only=arguments.only)
    rows = [_row(tool, offer.withheld.get(tool.name, "")) for tool in every_tool()]
    tokens = sum(row["tokens"] for row in rows if row["offered"])
    return Report(
        command="areal-mcp --list",
        changing=False,
        text=_text(rows, tokens),
        data={"tools": rows, "tokens": tokens},
    )


def _row(tool: Tool, withheld: str) -> dict[str, Any]:
    schema = input_schema(tool)
    seen = json.dumps({"name": tool.name, "description": tool.help, "input_schema": schema})
    return {
        "name": tool.name,
        "title": tool.title,
        "help": tool.help,
        "command": " ".join([tool.program, *tool.words]),
        "writes": tool.writes,
        "offered": not withheld,
        "withheld": withheld,
        "tokens": len(seen) // _CHARACTERS_PER_TOKEN,
        "input_schema": schema,
        "output_schema": output_schema(tool),
    }


def _text(rows: list[dict[str, Any]], tokens: int) -> str:
    shown = [
        (row["name"], row["command"], f"{row['tokens']} tokens", "writes" if row["writes"] else "", row["withheld"])
        for row in rows
    ]
    count = sum(row["offered"] for row in rows)
    return f"{aligned(shown)}\n{count} tools offered; an agent that is shown all of them reads about {tokens} tokens\n"
