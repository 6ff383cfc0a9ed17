"""Measure the memory of the machine that this process may use: of the system, within limits of its control group."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def host_memory(root: Path = Path("/")) -> int | None:
    """Return bytes of memory; None where the system does not tell. root: where /sys is, for tests."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int((root / "sys/fs/cgroup" / name).read_text(encoding="ascii")))
    return min(found, default=None)
