"""Runs commands as processes, and ends them for certain: those that read in parallel, one that writes alone.

    finished = await run(order, seconds=60, on_line=show)

Whatever ends the waiting - the command itself, a cancelled call, time, too much output - leaves no process behind: the
lifeline (`tooling.mcp.child`) is closed, and what does not end by itself is killed, with everything that it started
(Linux lists also what has left the process group). A command that reads beside one that writes would see half a change.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from tooling.mcp.child import GRACE_SECONDS, descendants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import ByteReceiveStream, Process

    from tooling.mcp.tools.call import ToolOrder


READERS: Final = 4
"""Most commands at once; each is a process that may use a core."""


class Queue:
    """Orders the commands of one repository. A writer goes before those that come later and read."""

    def __init__(self) -> None:
        self._changed = anyio.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Wait until nobody writes, and run beside other readers."""
        async with self._changed:
            while self._writing or self._writers_waiting or self._readers >= READERS:
                await self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            await self._leave(readers=1)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Wait for all others to end, and run alone."""
        async with self._changed:
            self._writers_waiting += 1
            try:
                while self._writing or self._readers:
                    await self._changed.wait()
                self._writing = True
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            await self._leave(writing=True)

    async def _leave(self, *, readers: int = 0, writing: bool = False) -> None:
        with anyio.CancelScope(shield=True):
            async with self._changed:
                self._readers -= readers
                self._writing = self._writing and not writing
                self._changed.notify_all()


MODULE: Final = "tooling.mcp.child"
_REDIRECTING: Final = (
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
"""Would lead git to another repository than the one that is served."""
_SETTINGS: Final = {
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONUNBUFFERED": "1",
}
_STDERR_KEPT: Final = 8_000
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of standard output; nobody reads an answer that is longer."""
_POLL_SECONDS: Final = 0.01
_DRAIN_SECONDS: Final = 1.0


@dataclass(slots=True)
class Finished:
    """The end of a command."""

    status: int
    """Exit code; negative: ended by that signal."""
    output: bytes
    stderr: str
    """The end of it."""
    problem: str = ""
    """"timeout" or "output" when this side ended it."""


@dataclass(slots=True)
class _Heard:
    output: bytearray = field(default_factory=bytearray)
    stderr: str = ""
    overflowed: bool = False


async def run(
    order: ToolOrder, *, seconds: float, most: int = _MOST_BYTES, on_line: Callable[[str], Awaitable[None]]
) -> Finished:
    """Run a command to its end. Raises OSError when it cannot be started.

    seconds, most: after so long, or so many bytes of standard output, it is ended. on_line: gets each line of its
    standard error.
    """
    heard, problem = _Heard(), ""
    kept = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    said = {"program": order.program, "main": order.main, "words": order.words, "input": order.input}
    process = await anyio.open_process(
        [sys.executable, "-P", "-m", "areal_harness", MODULE],
        cwd=order.folder,
        env=kept | _SETTINGS,
        start_new_session=True,
    )
    try:
        with anyio.move_on_after(seconds) as clock:
            assert process.stdin is not None
            with contextlib.suppress(anyio.BrokenResourceError):  # it has ended already; its standard error says why
                await process.stdin.send(json.dumps(said).encode() + b"\n")
            await _listen(process, most, heard, on_line)
        problem = "timeout" if clock.cancelled_caught else "output" if heard.overflowed else ""
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    status = process.returncode
    assert status is not None
    return Finished(status, bytes(heard.output), heard.stderr, problem)


async def _listen(process: Process, most: int, heard: _Heard, on_line: Callable[[str], Awaitable[None]]) -> None:
    """Read until the command has ended. What it leaves running may keep its outputs open, and is not waited for."""
    assert process.stdout is not None
    assert process.stderr is not None
    closed = anyio.Event()
    async with anyio.create_task_group() as group:

        async def collect(stream: ByteReceiveStream) -> None:
            async for part in stream:
                heard.output += part
                if len(heard.output) > most:
                    heard.overflowed = True
                    group.cancel_scope.cancel()
            closed.set()

        async def show(stream: ByteReceiveStream) -> None:
            rest = ""
            async for part in stream:
                text = part.decode("utf-8", errors="replace")
                heard.stderr = (heard.stderr + text)[-_STDERR_KEPT:]
                *lines, rest = (rest + text).split("\n")
                rest = rest[-_STDERR_KEPT:]
                for line in lines:
                    await on_line(line)

        group.start_soon(collect, process.stdout)
        group.start_soon(show, process.stderr)
        await _ended(process)
        with anyio.move_on_after(_DRAIN_SECONDS):
            await closed.wait()
        group.cancel_scope.cancel()


async def _ended(process: Process) -> None:
    """Wait for the process alone: `Process.wait` would also wait for its pipes, which others may hold open."""
    while process.returncode is None:
        await anyio.sleep(_POLL_SECONDS)


async def _end(process: Process) -> None:
    """Close the lifeline, give it time, then kill it and all that it started."""
    below = descendants(process.pid) if process.returncode is None else []
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(GRACE_SECONDS + 1):
        await _ended(process)
    if process.returncode is None:
        below += descendants(process.pid)
        if sys.platform == "win32":
            os.kill(process.pid, signal.SIGTERM)  # ends it at once there
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await _ended(process)
    for each in below:
        each.kill()
    with anyio.move_on_after(_DRAIN_SECONDS):
        await process.aclose()
