"""Runs one command in a child process, for as long as whoever started it lives.

    python -P -m areal_harness tooling.mcp.child < pipe

The pipe's first line says what to run; after that it is a lifeline. When its other end closes, because the call was
cancelled or because the server died in whatever way, the command gets what Ctrl-C sends, time to roll back, and is
then killed together with everything it started.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


GRACE_SECONDS: Final = 5.0
"""For rolling back; a command needs a fraction of it."""


_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Descendant:
    """A process, distinguished from a later one of the same number by when it began."""

    pid: int
    began: str

    def kill(self) -> None:
        """End it if it is still there."""
        found = _read(self.pid)
        if found is not None and found[1] == self.began:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def descendants(pid: int) -> list[Descendant]:
    """Return the children of a process, their children, and so on."""
    if not _PROC.is_dir():
        return []
    below: dict[int, list[Descendant]] = {}
    for entry in _PROC.iterdir():
        found = _read(int(entry.name)) if entry.name.isdecimal() else None
        if found is not None:
            below.setdefault(found[0], []).append(Descendant(int(entry.name), found[1]))
    found_all, todo = list[Descendant](), [pid]
    while todo:
        children = below.pop(todo.pop(), [])
        found_all += children
        todo += [child.pid for child in children]
    return found_all


def _read(pid: int) -> tuple[int, str] | None:
    """Return the parent of a process, and when it began; None when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in front may hold anything
    return int(fields[1]), fields[19]


def main() -> int:
    """Run the command of the first line, and return its exit code."""
    lifeline = os.dup(0)  # not inherited by what the command starts
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(lifeline, 1 << 16)
        if not part:
            raise SystemExit("the pipe was closed before it said what to run")
        line += part
    order: dict[str, Any] = json.loads(line)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    sys.stdin = io.TextIOWrapper(io.BytesIO(order["input"].encode("utf-8", "surrogatepass")), encoding="utf-8")
    sys.argv = [order["program"], *order["words"]]
    # A server that was started in the background would hand down that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    below: list[Descendant] = []
    threading.Thread(target=_watch, args=(lifeline, below), daemon=True).start()
    module, _, function = order["main"].partition(":")
    run: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
    try:
        return run(order["words"])
    finally:
        # What the command has started does not outlive it
        for each in [*below, *descendants(os.getpid())]:
            each.kill()
        if sys.platform != "win32" and os.getpgrp() == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)


def _watch(lifeline: int, below: list[Descendant]) -> None:
    while os.read(lifeline, 1024):
        pass
    below += descendants(os.getpid())  # some may lose their parent before they are looked for again
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()
        time.sleep(GRACE_SECONDS)
        os._exit(130)
    os.killpg(0, signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
