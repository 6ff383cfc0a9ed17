"""Measure the share of the machine that this process may use: cores (affinity, quotas, load), and memory."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShare:
    """What a process may have of its machine's CPUs.

    Example, a container with 4 of 64 CPUs: `CpuShare(total=64, allowed=64, quota=4.0, load=0.3)`.
    """

    total: int
    """Cores of the machine."""
    allowed: int
    """Cores that the process may be scheduled on (its affinity); two CPUs that share a core compute like one."""
    quota: float | None
    """CPU seconds per second that its control groups grant; None without a limit."""
    load: float
    """Processes that wanted to run in the last minute, on the whole machine (the load average)."""

    @property
    def usable(self) -> int:
        """CPUs that the process could keep busy if it were alone, at least 1."""
        return max(1, self.allowed if self.quota is None else min(self.allowed, math.floor(self.quota)))

    @property
    def free(self) -> int:
        """`usable` without those that others keep busy, at least 1; the load is taken to be spread evenly."""
        return max(1, self.usable - round(self.load * self.allowed / max(1, self.total)))


def cpu_share(root: Path = Path("/")) -> CpuShare:
    """Return the share of this process, now. root: where /proc and /sys are, for tests."""
    everything = set(range(os.cpu_count() or 1))
    # Not on every system; there, a process may use all.
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = everything if affinity is None else set(affinity(0))
    load = 0.0
    with contextlib.suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
    return CpuShare(total=_cores(root, everything), allowed=_cores(root, allowed), quota=_quota(root), load=load)


def _cores(root: Path, cpus: Collection[int]) -> int:
    """Return the number of cores that CPUs belong to; where the system does not tell, each is one."""
    found = set()
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            found.add(siblings.read_text(encoding="ascii").strip())
        except OSError:
            found.add(str(cpu))
    return len(found)


def _quota(root: Path) -> float | None:
    """Return the smallest limit of the process's control groups, of version 2 or 1; None without one."""
    limits: list[float] = []
    for group in _groups(root):
        with contextlib.suppress(OSError, ValueError):
            limit, period = (group / "cpu.max").read_text(encoding="ascii").split()
            if limit != "max":
                limits.append(int(limit) / int(period))
        with contextlib.suppress(OSError, ValueError):
            limit = (group / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii")
            if int(limit) > 0:
                limits.append(int(limit) / int(period))
    return min(limits, default=None)


def _groups(root: Path) -> list[Path]:
    """Folders of the control groups that limit CPU time: the process's own and all above it."""
    found: list[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        own = mount / path.lstrip("/")
        # In a container the path may be that outside; then only the mount itself is there.
        found += [folder for folder in (own, *own.parents) if folder.is_relative_to(mount) and folder.is_dir()]
    return found


def free_memory(root: Path = Path("/")) -> int | None:
    """Return bytes that are free, or in caches that can go; None where the system does not tell. root: where /proc is,
    for tests."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def host_memory(root: Path = Path("/")) -> int | None:
    """Return bytes of memory; None where the system does not tell. root: where /sys is, for tests."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int((root / "sys/fs/cgroup" / name).read_text(encoding="ascii")))
    return min(found, default=None)
