"""One call of a tool, from its arguments to its answer. Knows nothing of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.cli.errors import ToolError, WriteError
from tooling.mcp.running.process import Limits, Order, run
from tooling.mcp.running.queue import Queue
from tooling.mcp.serving.result import answer_of, refusal_of
from tooling.mcp.tools.call import make_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from typing import Any

    from tooling.mcp.serving.result import Answer
    from tooling.mcp.tools.records import Tool


@dataclass(frozen=True, slots=True)
class Caller:
    """Of one repository."""

    root: Path
    timeout: float | None
    """Seconds for every command; None: each has its own."""
    most: int
    """Characters of an answer."""
    queue: Queue = field(default_factory=Queue)

    async def call(self, tool: Tool, arguments: Mapping[str, Any], on_line: Callable[[str], Awaitable[None]]) -> Answer:
        """Run the command of a tool. What is wrong with the arguments, or goes wrong, is an answer too."""
        try:
            call = make_call(tool, arguments, self.root)
        except ToolError as error:
            return refusal_of(tool, error)
        order = Order(program=tool.program, main=tool.main, words=call.words, input=call.input, folder=self.root)
        seconds = tool.seconds if self.timeout is None else self.timeout
        try:
            async with self.queue.writing() if tool.writes else self.queue.reading():
                finished = await run(order, Limits(seconds=seconds), on_line=on_line)
        except OSError as error:
            problem = WriteError(f"the command could not be started: {error.strerror}", where=tool.program)
            return refusal_of(tool, problem)
        return answer_of(tool, finished, most=self.most, seconds=seconds)
