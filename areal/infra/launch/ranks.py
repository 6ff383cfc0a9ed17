"""The processes of one start of a launch: same program, same incarnation, numbers of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.infra.supervisor.process import ServerProcess, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START_VARIABLE: Final = "AREAL_LAUNCH_START"
"""Environment variable with the number of the start, from 0: above 0, a rank is to continue from a checkpoint."""
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    status: int
    """Exit status; 128 + signal number when it was killed."""
    text: str
    """The same in words."""
    log_path: Path


class RankGroup:
    """Running ranks. Every process is guarded: what it started ends with it, and all end with this process."""

    def __init__(
        self, command: Sequence[str], *, num_ranks: int, start: int, incarnation: str, log_folder: Path, grace: float
    ) -> None:
        """Start them all. Raises EngineError, with none left running, when one cannot be started."""
        self.incarnation = incarnation
        self._processes: list[ServerProcess] = []
        shared = {
            "MASTER_ADDR": _HOST,
            "MASTER_PORT": str(free_port(_HOST)),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            START_VARIABLE: str(start),
        }
        try:
            for rank in range(num_ranks):
                process = ServerProcess(
                    command,
                    environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    log_path=log_folder / f"rank-{rank}.log",
                    incarnation=incarnation,
                    grace_seconds=grace,
                )
                self._processes.append(process)
        except BaseException:
            self.stop(0.0)
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the guards, by rank."""
        return [process.pid for process in self._processes]

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(process.exit_status is None for process in self._processes)

    def failures(self) -> list[RankEnd]:
        """Ranks that ended with anything but 0, killed ones first: what follows is often only their consequence."""
        ends = [
            RankEnd(rank=rank, status=status, text=process.exit_text or "", log_path=process.log_path)
            for rank, process in enumerate(self._processes)
            if (status := process.exit_status)
        ]
        return sorted(ends, key=lambda end: (end.status <= 128, end.rank))

    def stop(self, grace_seconds: float) -> None:
        """End all, at the same time: they may be waiting for each other to save."""
        if self._processes:
            with ThreadPoolExecutor(len(self._processes)) as pool:
                list(pool.map(lambda process: process.stop(grace_seconds=grace_seconds), self._processes))
