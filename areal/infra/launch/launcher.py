"""Start the ranks of a run, watch them, and start them again when one fails.

    launcher = LocalLauncher(["areal", "train", "run.yaml"], config=LaunchConfig(num_ranks=2), log_folder=folder)
    with StopRequest() as stop:
        result = launcher.run(stop)

A rank that fails ends the others: they would wait for it for ever, and what they compute without it is no longer the
run. All start again, as another incarnation, and continue from the run's own checkpoint; this file knows nothing of
checkpoints. It is not a scheduler: one machine, one program.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import (
    BusyError,
    CheckpointError,
    DataError,
    FinishedError,
    NumericsError,
    RolloutError,
    UsageError,
)
from areal.infra.launch.ranks import LogFollower, RankEnd, RankProcesses
from areal.infra.supervisor.process import free_port, keep_newest, log_tail, new_incarnation
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.launch.config import LaunchConfig

_logger = getLogger(__name__)
_FINAL_ERRORS: Final = (
    UsageError,
    DataError,
    CheckpointError,
    RolloutError,
    NumericsError,
    FinishedError,
    BusyError,
)
FINAL_STATUSES: Final = frozenset({127, *(error.exit_code for error in _FINAL_ERRORS)})
"""Exit codes that another start would only repeat: those of `areal`, and "no such program"."""
_STOPPED_STATUSES: Final = frozenset({130, 143})
"""Somebody else asked a rank to stop, and it did."""
_POLL_INTERVAL_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 60.0
_STALLED_STATUS: Final = 124
_KILLED_STATUS: Final = 137
TAIL_LINES: Final = 30
LOG_FOLDER_VARIABLE: Final = "AREAL_LAUNCH_LOGS"
"""Environment variable with the folder of the launch's logs, which a run notes in its own."""
STARTS_FILE: Final = "starts.jsonl"
"""In that folder: one line per start that ended, of all launches that logged there."""
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of all ranks, and its end."""

    incarnation: str
    seconds: float
    status: int
    """0: all ranks ended well. Else that of the rank that failed first, 124 for a stall, 143 or 130 for a stop."""
    text: str
    """The end in words."""
    log_folder: Path
    rank: int | None = None
    """The rank that failed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What became of a launch."""

    starts: Sequence[Start] = field(default_factory=tuple)

    @property
    def exit_code(self) -> int:
        """That of the last start."""
        return self.starts[-1].status if self.starts else 0


class LocalLauncher:
    """Runs `command` as the configured number of ranks until they succeed, fail for good, or are asked to stop.

    log_folder: gets a folder per start, with a file per rank. on_output: receives what rank 0 prints, as it appears.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        config: LaunchConfig,
        log_folder: Path,
        on_output: Callable[[str], None] | None = None,
    ) -> None:
        self._command = list(command)
        self._config = config
        self._log_folder = log_folder
        self._on_output = on_output

    def run(self, stop: StopRequest) -> LaunchResult:
        """Launch; return when nothing of the launch runs any more, whatever happened, exceptions included."""
        starts: list[Start] = []
        failures = 0
        while True:
            start = self._start_once(len(starts), stop)
            starts.append(start)
            if start.status == 0 or stop.requested or start.status in FINAL_STATUSES | _STOPPED_STATUSES:
                break
            failures = 1 if start.seconds > self._config.restart_reset_seconds > 0 else failures + 1
            if failures > self._config.max_restarts:
                _logger.error("%s; %d starts failed in a row, giving up", start.text, failures)
                break
            pause = min(self._config.restart_pause_seconds * 2 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
            _logger.warning(
                "%s; restart %d of %d in %.0f s", start.text, failures, self._config.max_restarts, pause
            )  # the tail of the log was shown already
            if stop.requested_within(pause):
                break
        return LaunchResult(starts=tuple(starts))

    def _start_once(self, number: int, stop: StopRequest) -> Start:
        incarnation = new_incarnation()
        folder = self._log_folder / f"start-{number:04d}-{incarnation}"
        keep_newest(self._log_folder, "start-*-*", self._config.keep_logs - 1)
        began = time.monotonic()
        ranks = RankProcesses(
            self._command,
            ranks=range(self._config.num_ranks),
            world_size=self._config.num_ranks,
            meeting=(_HOST, free_port(_HOST)),
            start=number,
            incarnation=incarnation,
            log_folder=folder,
            grace=self._config.grace_seconds,
            environment={LOG_FOLDER_VARIABLE: str(self._log_folder.resolve())},
        )
        _logger.info("start %d (incarnation %s): %d ranks, logs in %s", number, incarnation, len(ranks.pids), folder)
        try:
            status, text, failed = self._watch(ranks, folder, stop)
        finally:
            ranks.stop(self._config.failure_grace_seconds)
        seconds = time.monotonic() - began
        rank = None if failed is None else failed.rank
        line = {"incarnation": incarnation, "start": number, "seconds": round(seconds, 2), "status": status,
                "rank": rank, "text": text, "logs": folder.name}  # fmt: skip
        try:
            with (self._log_folder / STARTS_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            _logger.warning("%s cannot be written: %s", self._log_folder / STARTS_FILE, error)
        return Start(incarnation=incarnation, seconds=seconds, status=status, text=text, log_folder=folder, rank=rank)

    def _watch(self, ranks: RankProcesses, folder: Path, stop: StopRequest) -> tuple[int, str, RankEnd | None]:
        """Until the start is over; returns its status, in words too, and the rank that failed first."""
        output = LogFollower(folder / "rank-0.log", self._on_output)
        progress = _Progress(self._config.progress_file)
        try:
            while ranks.running and not ranks.failures():
                if stop.requested:
                    return self._end_gently(ranks, stop)
                if self._config.stall_seconds and progress.still_for() > self._config.stall_seconds:
                    ranks.stop(0.0)  # what hangs does not listen
                    text = f"{self._config.progress_file} did not change for {self._config.stall_seconds:g} s"
                    return _STALLED_STATUS, text, None
                time.sleep(_POLL_INTERVAL_SECONDS)
                output.pass_on()
        finally:
            output.pass_on()
        if not (failures := ranks.failures()):
            return 0, "all ranks ended well", None
        first = failures[0]
        text = f"rank {first.rank} of {self._config.num_ranks}: {first.text}"
        _logger.error("%s; the end of %s:\n%s", text, first.log_path, log_tail(first.log_path, TAIL_LINES))
        return first.status, text, first

    def _end_gently(self, ranks: RankProcesses, stop: StopRequest) -> tuple[int, str, RankEnd | None]:
        ranks.stop(self._config.grace_seconds)
        killed = [str(end.rank) for end in ranks.failures() if end.status == _KILLED_STATUS]
        text = "asked to stop"
        if killed:
            text += f"; ranks {', '.join(killed)} did not end within {self._config.grace_seconds:g} s and were killed"
            _logger.warning("%s", text)
        return stop.exit_code or 143, text, None


class _Progress:
    """How long a file has stayed as it is; a clock that nobody sets decides."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen, self._since = self._look(), time.monotonic()

    def still_for(self) -> float:
        if (now := self._look()) != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
