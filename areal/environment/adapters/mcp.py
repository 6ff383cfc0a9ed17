"""Tools of an MCP server, as an environment: the policy calls them until it answers without a call.

    environment: mcp
    environment_options: {command: python, args: [my_server.py]}
    with_reward: true              # tools give no reward: the run's own judges the answer

One server per episode, over its standard input and output; it ends with the episode. The question is the row's
`messages`. A server answers its own crash, an unknown tool and bad arguments alike with an error result, which the
policy reads; only a server that is gone is a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, Any

from areal.api import StepResult, TurnObservation
from areal.environment.adapters import require

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from areal.api import AssistantTurn


class McpEnvironments:
    """Makes episodes with a server of their own."""

    def __init__(
        self,
        command: str,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        images: bool = False,
    ) -> None:
        """command, args: the server's program; no shell reads them. env: its variables beside a few usual ones. images:
        show those that tools return; else the policy reads "(image)" in their place.
        """
        require("mcp")
        self._command, self._args, self._env, self._cwd = command, list(args), dict(env or {}), cwd
        self._images = images

    def create(self) -> McpEpisode:
        """Return an episode; its server starts with `reset`."""
        return McpEpisode(self._command, self._args, self._env, self._cwd, images=self._images)


class McpEpisode:
    """One server and the client's session with it."""

    def __init__(
        self, command: str, args: list[str], env: Mapping[str, str], cwd: str | None, *, images: bool = False
    ) -> None:
        self._with_images = images
        self._command, self._args, self._env, self._cwd = command, args, dict(env), cwd
        self._owner: asyncio.Task[None] | None = None
        self._requests: asyncio.Queue[tuple[Callable[[Any], Awaitable[Any]], asyncio.Future[Any]] | None]
        self._is_open = False

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """See `areal.api.Environment`. Servers know no seed."""
        del seed
        await self.close()
        messages = row.get("messages")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not messages:
            raise ValueError("the row has no messages: what is the question?")
        self._requests = asyncio.Queue()
        # One task enters and leaves the session: the library binds its scopes to the task that opened them.
        self._owner = asyncio.create_task(self._own())
        listed = await self._ask(lambda session: session.list_tools())
        self._is_open = True
        tools = tuple(
            {"name": tool.name, "description": tool.description or "", "parameters": dict(tool.input_schema)}
            for tool in listed.tools
        )
        return TurnObservation(messages=tuple(messages), tools=tools)

    async def step(self, answer: AssistantTurn) -> StepResult:
        """See `areal.api.Environment`. Calls run one after the other, in their order."""
        if not self._is_open:
            raise RuntimeError("step() after the end of the episode")
        if not answer.calls:
            self._is_open = False
            return StepResult(observation=TurnObservation(messages=()), terminated=True)
        messages, images, num_failed = [], [], 0
        for one in answer.calls:
            result = await self._ask(_calling(one.name, one.arguments))
            parts = []
            for part in result.content:
                text = getattr(part, "text", f"({part.type})")
                if self._with_images and part.type == "image":
                    images.append(part.data)
                    text = "<image>"
                elif self._with_images:
                    text = text.replace("<image>", "(image)")  # written by a tool, it shows none
                parts.append(text)
            num_failed += bool(result.is_error)
            text = "\n".join(parts)
            messages.append({"role": "tool", "content": f"error: {text}" if result.is_error else text})
        observation = TurnObservation(messages=tuple(messages), images=tuple(images))
        return StepResult(observation=observation, info={"mcp_errors": float(num_failed)})

    async def close(self) -> None:
        """See `areal.api.Environment`."""
        self._is_open = False
        owner, self._owner = self._owner, None
        if owner is not None:
            self._requests.put_nowait(None)
            with contextlib.suppress(Exception):
                await owner

    async def _ask(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        """Let the owner make a request. Raises what it raises, or ConnectionError when the server is gone."""
        owner = self._owner
        assert owner is not None, "reset comes first"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((request, future))
        await asyncio.wait({owner, future}, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        error = owner.exception()
        raise ConnectionError(f"the MCP server is gone: {error if error is not None else 'it ended'}")

    async def _own(self) -> None:
        """Hold the session, and make requests one by one until None comes."""
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        passed = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        parameters = StdioServerParameters(
            command=self._command, args=self._args, env={**passed, **self._env}, cwd=self._cwd
        )
        # The server's log is its own: it does not belong into that of the run.
        with tempfile.TemporaryFile("w") as log:
            async with stdio_client(parameters, errlog=log) as streams, ClientSession(*streams) as session:
                await session.initialize()
                while (item := await self._requests.get()) is not None:
                    request, future = item
                    try:
                        found = await request(session)
                    except Exception as error:  # noqa: BLE001 - the caller's, which raises it
                        if not future.done():
                            future.set_exception(error)
                    else:
                        if not future.done():
                            future.set_result(found)


def _calling(name: str, arguments: Mapping[str, Any]) -> Callable[[Any], Awaitable[Any]]:
    async def call(session: Any) -> Any:
        return await session.call_tool(name, dict(arguments))

    return call
