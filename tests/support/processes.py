"""Processes of this machine, their words and variables, as the kernel shows them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


def eventually(condition, seconds=60):
    """Wait until it holds; return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            return value
        time.sleep(0.05)
    return value


def command_lines():
    """Yield (pid, words of the command) of every process that is alive."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                yield int(path.parent.name), path.read_bytes().decode(errors="replace").split("\0")[:-1]


def variables(pid):
    """Return the environment a process was started with; empty when it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(line.partition("=")[::2] for line in text.split("\0") if line)
