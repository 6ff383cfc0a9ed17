"""Logs of a job: which files are the newest, and their lines, with labels of their processes and without secrets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from areal.infra.jobs.files import ENDED, Redactor
from areal.infra.supervisor.process import log_tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from areal.infra.jobs.files import JobFolder
    from areal.infra.jobs.plan import JobPlan

_POLL_SECONDS: Final = 0.3


@dataclass(slots=True)
class LogReader:
    """Reads the newest logs of a job. role, index: only those; empty takes all."""

    folder: JobFolder
    plan: JobPlan
    role: str = ""
    index: str = ""
    _positions: dict[Path, int] = field(default_factory=dict)

    def files(self) -> list[tuple[str, Path]]:
        """Return (label, file) of what is to be read now."""
        return [
            (label, path)
            for label, path in log_files(self.folder, self.plan)
            if self.role in {"", label.partition(" ")[0]} and self.index in {"", label.partition(" ")[2]}
        ]

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of each file."""
        redact = Redactor(self.folder.private().secrets)
        lines = []
        for label, path in self.files():
            self._positions[path] = path.stat().st_size
            lines += [f"[{label}] {line}" for line in redact(log_tail(path, count)).splitlines()]
        return lines

    def new_lines(self) -> Iterator[str]:
        """Yield whole lines as files grow, until the job has ended and nothing is left to read."""
        redact = Redactor(self.folder.private().secrets)
        while True:
            ended = self.folder.state().get("state") in ENDED
            for label, path in self.files():
                with path.open("rb") as file:
                    file.seek(self._positions.get(path, 0))
                    whole, newline, _ = file.read().rpartition(b"\n")
                self._positions[path] = self._positions.get(path, 0) + len(whole) + len(newline)
                if newline:
                    yield from (f"[{label}] {line}" for line in redact(whole.decode("utf-8", "replace")).splitlines())
            if ended:
                return
            time.sleep(_POLL_SECONDS)


def log_files(folder: JobFolder, plan: JobPlan) -> list[tuple[str, Path]]:
    """Return (label, file) of the newest logs: ranks of the newest start, services and runners of the newest life."""
    starts, lives = sorted(folder.logs.glob("start-*-*")), sorted(folder.logs.glob("life-*"))
    found: list[tuple[str, Path]] = []
    if starts:
        ranks = [(int(path.stem.partition("-")[2]), path) for path in starts[-1].glob("rank-*.log")]
        found += [(f"trainer {rank}", path) for rank, path in sorted(ranks)]
    if lives:
        for role in plan.roles[1:]:
            services = [(*_numbers(path), path) for path in (lives[-1] / role.name).glob("*.*.log")]
            found += [(f"{role.name} {index}", path) for index, _, path in sorted(services)]
    # Slurm's runners write to one place over all allocations: it names the file before there is one.
    runners = [path for folder_ in (*lives[-1:], folder.logs) for path in (folder_ / "runners").glob("*.log")]
    return found + [(f"runner {path.stem}", path) for path in sorted(runners)]


def _numbers(path: Path) -> tuple[int, int]:
    """Return index and start of "3.0.log"."""
    index, start, _ = path.name.split(".")
    return int(index), int(start)
