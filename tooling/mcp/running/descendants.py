"""What a process has started, so that nothing outlives it: also what has left its process group.

Linux tells; elsewhere the list is empty, and the process group and the command's own tidiness have to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Descendant:
    """A process, told apart from a later one of the same number by when it began."""

    pid: int
    began: str

    def kill(self) -> None:
        """End it if it is still there."""
        found = _read(self.pid)
        if found is not None and found[1] == self.began:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def descendants(pid: int) -> list[Descendant]:
    """Children of a process, their children, and so on."""
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
    """Parent, and when it began."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in front may hold anything
    return int(fields[1]), fields[19]
