"""The ranks of one start that run on this machine: same program, same incarnation, numbers of their own.

    ranks = RankProcesses(command, ranks=range(8, 16), world_size=16, meeting=("10.0.0.1", 29400), ...)

Who decides about restarts (`launcher`, `areal.infra.jobs`) watches them through this.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.infra.supervisor.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

START_VARIABLE: Final = "AREAL_LAUNCH_START"
"""Environment variable with the number of the start, from 0: above 0, a rank is to continue from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    status: int
    """Exit status; 128 + signal number when it was killed."""
    text: str
    """The same in words."""
    log_path: Path


class RankProcesses:
    """Processes of one start on this machine.

    Every process is guarded: what it started ends with it, and all end with this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ranks: Sequence[int],
        world_size: int,
        meeting: tuple[str, int],
        start: int,
        incarnation: str,
        log_folder: Path,
        grace: float,
        environment: Mapping[str, str],
    ) -> None:
        """Start them all. ranks: numbers of those on this machine. meeting: host and port at which rank 0 will listen.
        environment: for all of them, beside what tells each its number.

        Raises EngineError, with none left running, when one cannot be started.
        """
        self.incarnation = incarnation
        self._ranks = list(ranks)
        self._processes: list[ServerProcess] = []
        host, port = meeting
        shared = {
            **environment,
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(len(self._ranks)),
            START_VARIABLE: str(start),
        }
        try:
            for place, rank in enumerate(self._ranks):
                process = ServerProcess(
                    command,
                    environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(place)},
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
            for rank, process in zip(self._ranks, self._processes, strict=True)
            if (status := process.exit_status)
        ]
        return sorted(ends, key=lambda end: (end.status <= 128, end.rank))

    def stop(self, grace_seconds: float) -> None:
        """End all, at the same time: they may be waiting for each other to save."""
        if self._processes:
            with ThreadPoolExecutor(len(self._processes)) as pool:
                list(pool.map(lambda process: process.stop(grace_seconds=grace_seconds), self._processes))


class LogFollower:
    """Hands on what a file has grown by."""

    def __init__(self, path: Path, on_output: Callable[[str], None] | None) -> None:
        self._path, self._on_output, self._position = path, on_output, 0

    def pass_on(self) -> None:
        """Call `on_output` with what is new."""
        if self._on_output is None or not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        self._position += len(text)
        if text:
            self._on_output(text.decode("utf-8", errors="replace"))
