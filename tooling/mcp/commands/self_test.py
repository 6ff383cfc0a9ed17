"""Starts a server as a client does, and compares its answers with those of the commands."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
from jsonschema import Draft202012Validator
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import TextContent

from tooling.cli.errors import FindingError
from tooling.cli.git import find_repository
from tooling.cli.report import Report
from tooling.mcp.paging import MORE, Part, assemble
from tooling.mcp.tools.arguments import arguments_of
from tooling.mcp.tools.call import make_call, output_schema
from tooling.mcp.tools.table import offered

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from tooling.mcp.tools.records import Tool


_LONGEST: Final = 300
"""Seconds that a tool may say it takes, to be called here."""


def run(arguments: argparse.Namespace) -> Report:
    """Ask a server, and say of each question whether the answer was right."""
    root = find_repository(arguments.repo).root.resolve()
    rows = anyio.run(_ask, root, arguments.allow_writes, arguments.only)
    wrong = [row for row in rows if not row["right"]]
    text = "".join(f"{'ok   ' if row['right'] else 'WRONG'}  {row['what']}: {row['message']}\n" for row in rows)
    return Report(
        command="areal-mcp --self-test",
        exit_code=FindingError.exit_code if wrong else 0,
        changing=False,
        text=f"{text}{len(rows)} questions, {len(wrong)} answered wrongly\n",
        data={"results": rows},
    )


async def _ask(root: Path, writes: bool, only: tuple[str, ...]) -> list[dict[str, Any]]:
    """Call every tool that only reads, needs no network, and has an example or no arguments that must be given."""
    options = [*(["--allow-writes"] if writes else []), *([f"--only={','.join(only)}"] if only else [])]
    server = StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "areal_harness", "tooling.mcp", f"--repo={root}", *options], cwd=root
    )
    offer, rows = offered(writes=writes, only=only), list[dict[str, Any]]()
    # Named here: the client's default is what stderr was when its module was imported, which may be closed by now.
    async with Client(stdio_client(server, errlog=sys.__stderr__ or sys.stderr)) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        rows.append(_row("tools", listed == [*offer.tools, MORE], f"{len(listed)} listed"))
        resources = (await client.list_resources()).resources
        read = [await client.read_resource(one.uri) for one in resources]
        rows.append(_row("pages", all(one.contents for one in read), f"{len(read)} read"))
        prompts = (await client.list_prompts()).prompts
        rows.append(_row("prompts", True, f"{len(prompts)} listed"))
        for tool in offer.tools.values():
            callable_as_it_is = tool.example or not any(each.required for each in arguments_of(tool))
            if callable_as_it_is and not (tool.writes or tool.network or tool.seconds > _LONGEST):
                rows.append(await _compare_with_command(client, tool, root))
    return rows


async def _compare_with_command(client: Client, tool: Tool, root: Path) -> dict[str, Any]:
    """Call a tool, and at the same time run its command by hand: both have to give the same object."""
    order = make_call(tool, tool.example, root)
    module, _, function = order.main.partition(":")
    program = f"import sys; from {module} import {function} as run; sys.exit(run(sys.argv[1:]))"
    words = [sys.executable, "-P", "-c", program, *order.words]
    printed = b""

    async def by_hand() -> None:
        nonlocal printed
        printed = (await anyio.run_process(words, input=order.input.encode(), cwd=root, check=False)).stdout

    async with anyio.create_task_group() as group:
        group.start_soon(by_hand)
        started = time.monotonic()
        result = await client.call_tool(tool.name, dict(tool.example))
        seconds = time.monotonic() - started
    answer = result.structured_content
    problems = [error.message for error in Draft202012Validator(output_schema(tool)).iter_errors(answer)]
    message = f"exit code {answer['exit_code']}, {seconds:.2f} s"
    if problems:
        return _row(tool.name, False, f"{message}; not as its schema says: {problems[0]}")
    same = json.loads(printed) == (await _whole(client, answer["more"]) if "more" in answer else answer)
    return _row(tool.name, same, message if same else f"{message}; `{tool.program}` itself answers differently")


async def _whole(client: Client, more: dict[str, Any]) -> Any:
    """Return an answer that was cut, from its pages."""
    parts = list[Part]()
    for number in range(more["pages"]):
        page = await client.call_tool(MORE, {"answer": more["answer"], "page": number + 1})
        [content] = page.content
        assert isinstance(content, TextContent)
        parts += json.loads(content.text)["parts"]
    return assemble(parts)


def _row(what: str, right: bool, message: str) -> dict[str, Any]:
    return {"what": what, "right": right, "message": message}
