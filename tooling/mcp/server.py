"""Serves the table, the calls and the pages in the words of the protocol.

The only module that loads the SDK, besides the self-test.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import mcp_types as types
from anyio import to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from tooling.cli.errors import ToolError, UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import version
from tooling.mcp import pages
from tooling.mcp.answers import Caller
from tooling.mcp.paging import MORE, MORE_HELP, MORE_SCHEMA, MORE_TITLE, Shelf
from tooling.mcp.tools.arguments import description_of
from tooling.mcp.tools.call import input_schema, output_schema
from tooling.mcp.tools.table import offered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import Any, TypeVar

    from mcp.server.context import ServerRequestContext

    from tooling.mcp.tools.records import Tool
    from tooling.mcp.tools.table import OfferedTools

    Result = TypeVar("Result")
    Context = ServerRequestContext[Any, Any]


NAME: Final = "areal"
BEAT_SECONDS: Final = 2.0
"""Between two signs of life of a call that takes long."""
_INSTRUCTIONS: Final = """\
The developer harness of this repository: generate, rename and undo rewards, datasets, workflows and model families
(new_*), audit and move dependencies (upgrade_*, audit*), review a change, check and suggest commit messages, check the
pages of agents. Each tool is a command with --json, and answers with its JSON object; `fix` and `next` say how to go
on. A long answer is cut: `more` has its pages. A tool that ends in _plan shows what the tool without it would write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of one server."""

    root: Path
    writes: bool
    only: tuple[str, ...]
    """Families of tools; empty for all."""
    timeout: float | None
    """Seconds for every command; None: each has its own."""
    most: int
    """Characters of an answer, text and structured content together."""


def serve(settings: ServerSettings) -> None:
    """Serve standard input and output until the client closes them."""

    async def serving() -> None:
        server = make_server(settings)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(serving)


def make_server(settings: ServerSettings) -> Server[Any]:
    """Return a server with all its handlers."""
    offer = offered(writes=settings.writes, only=settings.only)
    desk = _Desk(settings.root, offer, Caller(settings.root, settings.timeout, Shelf(settings.most)))
    return Server(
        NAME,
        version=version(),
        title="areal harness",
        instructions=_INSTRUCTIONS,
        on_list_tools=desk.list_tools,
        on_call_tool=desk.call_tool,
        on_list_resources=desk.list_resources,
        on_list_resource_templates=desk.list_templates,
        on_read_resource=desk.read_resource,
        on_list_prompts=desk.list_prompts,
        on_get_prompt=desk.get_prompt,
    )


def tool_record(tool: Tool) -> types.Tool:
    """Return a tool as it is listed."""
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=description_of(tool),
        input_schema=input_schema(tool),
        output_schema=output_schema(tool),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=not tool.writes,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent or not tool.writes,
            open_world_hint=tool.network,
        ),
    )


def _more_record() -> types.Tool:
    """Return the tool that hands out pages. It answers with text: a page would otherwise count twice."""
    return types.Tool(
        name=MORE,
        title=MORE_TITLE,
        description=MORE_HELP,
        input_schema=MORE_SCHEMA,
        annotations=types.ToolAnnotations(
            title=MORE_TITLE, read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )


@dataclass(frozen=True, slots=True)
class _Desk:
    """Answers requests; keeps nothing between them but the queue of its caller, and what it had to cut."""

    root: Path
    offer: OfferedTools
    caller: Caller

    async def list_tools(self, _context: Context, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[*map(tool_record, self.offer.tools.values()), _more_record()])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == MORE:
            return self._page(params.arguments or {})
        tool = self.offer.tools.get(params.name)
        if tool is None:
            name, withheld = params.name[:200], self.offer.withheld.get(params.name)
            hint = did_you_mean(name, self.offer.tools) or f"there are {', '.join(self.offer.tools)}, {MORE}"
            message = f"{name} cannot be called here: {withheld}" if withheld else f"there is no tool {name!r}; {hint}"
            raise MCPError(types.INVALID_PARAMS, message)
        async with _signs_of_life(context, tool) as on_line:
            answer = await self.caller.call(tool, params.arguments or {}, on_line)
        return types.CallToolResult(
            content=[types.TextContent(text=answer.text)],
            structured_content=answer.document,
            is_error=answer.failed,
        )

    def _page(self, arguments: dict[str, Any]) -> types.CallToolResult:
        try:
            return types.CallToolResult(content=[types.TextContent(text=self.caller.shelf.page(arguments))])
        except UsageError as error:
            return types.CallToolResult(content=[types.TextContent(text=f"error: {error}")], is_error=True)

    async def list_resources(self, _context: Context, _params: object) -> types.ListResourcesResult:
        found = await _in_thread(lambda: pages.resources(self.root))
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=one.address, name=one.name, description=one.description, mime_type=one.media_type)
                for one in found.values()
            ]
        )

    async def list_templates(self, _context: Context, _params: object) -> types.ListResourceTemplatesResult:
        kinds = {"skill": "Instructions for a task.", "expert": "What an expert knows."}
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=f"{kind}://{{name}}", name=kind, description=about, mime_type="text/markdown"
                )
                for kind, about in kinds.items()
            ]
        )

    async def read_resource(
        self, _context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        resource, text = await _in_thread(lambda: pages.read(self.root, params.uri))
        content = types.TextResourceContents(uri=resource.address, mime_type=resource.media_type, text=text)
        return types.ReadResourceResult(contents=[content])

    async def list_prompts(self, _context: Context, _params: object) -> types.ListPromptsResult:
        found = await _in_thread(lambda: pages.skills(self.root))
        task = types.PromptArgument(name=pages.TASK, description="What it is wanted for, in words.", required=False)
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(name=skill.name, description=skill.description, arguments=[task])
                for skill in found.values()
            ]
        )

    async def get_prompt(self, _context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        text = await _in_thread(lambda: pages.prompt(self.root, params.name, params.arguments or {}))
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(messages=[message])


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Read pages beside the event loop. A request that makes no sense is an error of the protocol, not of a tool."""
    try:
        return await to_thread.run_sync(work)
    except ToolError as error:
        raise MCPError(types.INVALID_PARAMS, str(error)) from error


@contextlib.asynccontextmanager
async def _signs_of_life(context: Context, tool: Tool) -> AsyncIterator[Callable[[str], Any]]:
    """Report progress while a command runs: seconds, with the last line it printed for people.

    A client that did not ask for it gets none.
    """
    said = [tool.title]
    started = anyio.current_time()

    async def on_line(line: str) -> None:
        if line.strip():
            said[0] = line.strip()[:200]

    async def beat() -> None:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            seconds = round(anyio.current_time() - started, 1)
            await context.session.report_progress(seconds, None, f"{seconds:.0f} s: {said[0]}")

    await context.session.report_progress(0.0, None, tool.title)
    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        yield on_line
        group.cancel_scope.cancel()
