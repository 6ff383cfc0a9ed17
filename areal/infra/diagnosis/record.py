"""Read the directory of a run: configuration, metrics, log of every start, launches, servers, checkpoints.

Any of it may be missing or end in the middle of a line: the run may go on, may have been killed, or may be older than
log.jsonl. What is not there is empty, never guessed.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import FinishedError, UsageError
from areal.infra.checkpoint.run_control import LOCK_NAME
from areal.infra.checkpoint.store import FOLDER_PATTERN, MANIFEST_NAME
from areal.infra.launch.launcher import STARTS_FILE
from areal.infra.metrics import names
from areal.infra.metrics.attempts import current_lines, read_attempts
from areal.infra.metrics.logger import LOG_FILE, ROLLOUTS_FILE, read_metrics, series
from areal.infra.metrics.report import CONFIG_FILE, metrics_file_of
from areal.infra.supervisor.process import log_tail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.infra.metrics.attempts import Attempt

    Points = list[tuple[int, float]]

State = Literal["finished", "stopped", "failed", "killed", "running", "unknown"]
"""finished: all steps done. stopped: by a signal, its state saved. failed: ended by an error. killed: its process is
gone and wrote no end. unknown: the directory does not say."""

_TAIL_LINES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of log.jsonl."""

    time: float
    """Seconds since 1970; 0 when it says none."""
    level: str
    logger: str
    message: str
    fields: Mapping[str, Any]
    """Everything else in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A published checkpoint, from its name; its files were not verified."""

    step: int
    folder: str
    whole: bool
    """Whether it has a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that the directory says."""

    directory: Path
    config: Mapping[str, Any]
    """Resolved configuration as nested mappings; empty when the run left none."""
    steps: Mapping[int, Mapping[str, float]]
    """Step to metrics, "time" included; of steps that were done again, what the newest attempt logged."""
    attempts: tuple[Attempt, ...]
    """Those that logged metrics, oldest first; `read_metrics` has the steps as any of them left them."""
    lines: tuple[LogLine, ...]
    """log.jsonl, in order."""
    faults: tuple[Mapping[str, Any], ...]
    """Faults whose prompt is known: {"kind", "prompt", "row", "message"}; a sample of all that `steps` counts."""
    launches: tuple[Mapping[str, Any], ...]
    """Ends of the starts of this run by `areal launch`, see `LocalLauncher`; "tail" is the end of the failed rank's
    log."""
    servers: Mapping[str, str]
    """Path of the newest log of each server process to its end."""
    checkpoints: tuple[SavedState, ...]
    """Oldest first."""
    state: State
    owner: Mapping[str, Any]
    """Process that the lock names: {"pid", "host", "started_unix"}; empty after an orderly end."""

    # -- configuration ---------------------------------------------------------------------------------------------

    def setting(self, key: str, default: Any = None) -> Any:
        """Value of a dotted key, e.g. `setting("rollout.batch_size", 0)`; the default where the run left none."""
        found: Any = self.config
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                return default
            found = found[part]
        return default if found is None else found

    @property
    def samples_per_step(self) -> int:
        """Samples that an RL step asks for."""
        return int(self.setting("rollout.batch_size", 0)) * int(self.setting("rollout.group_size", 0))

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def starts(self) -> tuple[LogLine, ...]:
        """First line of every start of the run."""
        return tuple(line for line in self.lines if line.fields.get("kind") == "start")

    @property
    def unended(self) -> int:
        """Starts that were followed by another one although they wrote no end."""
        kinds = [line.fields["kind"] for line in self.lines if line.fields.get("kind") in {"start", "end"}]
        return sum(pair == ("start", "start") for pair in pairwise(kinds))

    @property
    def end(self) -> LogLine | None:
        """Last line of the last start; None while it runs, and when it was killed."""
        last = next((line for line in reversed(self.lines) if line.fields.get("kind") in {"start", "end"}), None)
        return last if last is not None and last.fields["kind"] == "end" else None

    @property
    def problem(self) -> str:
        """Error that ended the last start, as `Type: message`; empty without one."""
        return str(self.end.fields.get("problem") or "") if self.end is not None else ""

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, as far as it is known."""
        configured = self.setting("total_train_steps")
        if isinstance(configured, int):
            return configured
        said = [line.fields.get("total_steps") for line in self.lines if line.fields.get("kind") == "end"]
        return next((value for value in reversed(said) if isinstance(value, int)), None)

    @property
    def last_step(self) -> int:
        """Steps that have metrics."""
        return max(self.steps, default=0)

    @property
    def last_time(self) -> float:
        """When the run wrote something last, in seconds since 1970; 0 when unknown."""
        metrics = (values.get("time", 0.0) for values in self.steps.values())
        return max([0.0, *metrics, *(line.time for line in self.lines)])

    @property
    def is_supervised(self) -> bool:
        """Whether it learns from rows as they are, without rollouts."""
        return self.setting("kind", "rl") != "rl"

    # -- numbers ---------------------------------------------------------------------------------------------------

    def values(self, name: str) -> Points:
        """Finite (step, value) pairs of a metric, in order of steps."""
        return [point for point in series(self.steps, name) if math.isfinite(point[1])]

    def eval_scores(self) -> dict[str, str]:
        """Return the mean rewards of evaluation sets: metric to name of the set."""
        return names.eval_scores(name for values in self.steps.values() for name in values)

    def total(self, name: str) -> float:
        """Sum of a metric over all steps."""
        return sum(value for _, value in self.values(name))

    def totals(self, prefix: str) -> dict[str, float]:
        """Return sums of the metrics whose names begin so, by the rest of the name; zeros left out, largest first."""
        found = {name for values in self.steps.values() for name in values if name.startswith(prefix)}
        sums = {name.removeprefix(prefix): self.total(name) for name in sorted(found)}
        return dict(sorted(((k, v) for k, v in sums.items() if v > 0), key=lambda item: -item[1]))

    def early(self, name: str) -> float:
        """Mean of the first quarter of a metric; NaN without values."""
        return _mean([value for _, value in first_quarter(self.values(name))])

    def late(self, name: str) -> float:
        """Mean of the last quarter of a metric; NaN without values."""
        return _mean([value for _, value in last_quarter(self.values(name))])

    def shares_of_time(self) -> dict[str, float]:
        """Return what the later half of the steps spent their time on, largest share first."""
        chosen = list(self.steps.values())[len(self.steps) // 2 :]
        whole = sum(values.get(names.TIME_STEP, 0.0) for values in chosen)
        parts: dict[str, float] = {}
        for values in chosen:
            for name, seconds in values.items():
                if name.startswith(names.TIME_PREFIX) and name != names.TIME_STEP and math.isfinite(seconds):
                    part = name.removeprefix(names.TIME_PREFIX)
                    parts[part] = parts.get(part, 0.0) + seconds
        whole = max(whole, sum(parts.values()))
        return {} if whole <= 0 else {k: v / whole for k, v in sorted(parts.items(), key=lambda item: -item[1])}

    # -- words -----------------------------------------------------------------------------------------------------

    def said(self, *phrases: str, logger: str = "", level: str = "") -> list[LogLine]:
        """Log lines with one of the phrases, in any case; only of loggers that begin so, and of that level."""
        lowered = [phrase.lower() for phrase in phrases]
        return [
            line
            for line in self.lines
            if line.logger.startswith(logger)
            and (not level or line.level == level)
            and any(phrase in line.message.lower() for phrase in lowered)
        ]


def first_quarter(points: Points) -> Points:
    """At least one point, if there is any."""
    return points[: max(1, len(points) // 4)]


def last_quarter(points: Points) -> Points:
    """At least one point, if there is any."""
    return points[-max(1, len(points) // 4) :]


def load_record(run_dir: Path, attempt: int | None = None) -> RunRecord:
    """Read a run directory. Raises UsageError when it is not one, or when nothing was written into it yet.

    attempt: take the steps as this attempt left them; None takes the newest values.
    """
    metrics_file = metrics_file_of(run_dir)
    steps = read_metrics(metrics_file, attempt)
    lines = tuple(_log_lines(run_dir / LOG_FILE))
    if not steps and not lines:
        raise UsageError(
            f"{run_dir} is an empty run: no line in metrics.jsonl and no {LOG_FILE}. It has not begun, or ended before "
            f"it could write; look at the output of the command that started it",
            where=str(run_dir),
            fix="start the run, or name the directory of another one",
        )
    owner = _lock_owner(run_dir / LOCK_NAME)
    return RunRecord(
        directory=run_dir,
        config=_config(run_dir / CONFIG_FILE),
        steps=steps,
        attempts=tuple(read_attempts(metrics_file)),
        lines=lines,
        faults=tuple(_faults(lines, run_dir / ROLLOUTS_FILE)),
        launches=tuple(_launches(lines)),
        servers=_server_logs(run_dir / "servers"),
        checkpoints=tuple(_checkpoints(run_dir / "checkpoints")),
        state=_state(run_dir, lines, owner),
        owner=owner,
    )


def _log_lines(path: Path) -> Iterator[LogLine]:
    for document in _documents(path):
        rest = {key: value for key, value in document.items() if key not in {"time", "level", "logger", "message"}}
        try:
            when = datetime.fromisoformat(str(document.get("time"))).timestamp()
        except ValueError:
            when = 0.0
        level, logger, message = (str(document.get(key, "")) for key in ("level", "logger", "message"))
        yield LogLine(time=when, level=level, logger=logger, message=message, fields=rest)


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a file of JSON lines; lines that are torn, or something else, are passed over."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict):
                yield document


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import yaml

    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not the YAML that a run leaves there: {error}",
            where=str(path),
            fix="restore the file, or remove it to do without the configuration",
        ) from error
    return found if isinstance(found, dict) else {}


def _faults(lines: Sequence[LogLine], rollouts: Path) -> Iterator[dict[str, Any]]:
    """Of the log; and of kept rollouts, those that a retry made good included."""
    seen = set()
    for line in lines:
        if "fault" in line.fields:
            kind, prompt = line.fields["fault"], line.fields.get("prompt")
            seen.add((kind, prompt))
            message = str(line.fields.get("detail", ""))
            yield {"kind": kind, "prompt": prompt, "row": line.fields.get("row"), "message": message}
    if not rollouts.is_file():
        return
    for text in current_lines(rollouts):
        if b'"faults":[]' in text or not text.endswith(b"\n"):
            continue  # nearly all lines; they are long
        try:
            group = json.loads(text)
            found = [(fault["kind"], group["group"], fault["message"]) for fault in group["faults"]]
        except (ValueError, KeyError, TypeError):
            continue
        for kind, prompt, message in found:
            if (kind, prompt) not in seen:
                seen.add((kind, prompt))
                yield {"kind": kind, "prompt": prompt, "row": None, "message": message}


def _launches(lines: Sequence[LogLine]) -> Iterator[dict[str, Any]]:
    """Read what `areal launch` wrote about the starts of this run."""
    own = {line.fields.get("incarnation"): line.fields.get("logs") for line in lines if line.fields.get("logs")}
    for folder in dict.fromkeys(own.values()):
        for document in _documents(Path(str(folder), STARTS_FILE)):
            if document.get("incarnation") not in own:
                continue
            rank = document.get("rank")
            log = Path(str(folder), str(document.get("logs")), f"rank-{rank}.log")
            yield {**document, "log": str(log), "tail": "" if rank is None else log_tail(log, _TAIL_LINES)}


def _server_logs(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for server in sorted(folder.iterdir()) if folder.is_dir() else ():
        logs = sorted(server.glob("*.log"), key=lambda path: path.stat().st_mtime) if server.is_dir() else []
        found |= {str(path): log_tail(path, _TAIL_LINES) for path in logs[-1:]}
    return found


def _checkpoints(folder: Path) -> list[SavedState]:
    found = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        if match := FOLDER_PATTERN.fullmatch(entry.name):
            whole = (entry / MANIFEST_NAME).is_file()
            found.append((int(match[2]), SavedState(step=int(match[1]), folder=entry.name, whole=whole)))
    return [checkpoint for _, checkpoint in sorted(found, key=lambda item: item[0])]


def _lock_owner(path: Path) -> dict[str, Any]:
    try:
        owner = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) and isinstance(owner.get("pid"), int) else {}


def _state(run_dir: Path, lines: Sequence[LogLine], owner: Mapping[str, Any]) -> State:
    marks = [line.fields for line in lines if line.fields.get("kind") in {"start", "end"}]
    if owner and owner.get("host") == socket.gethostname():
        return "running" if _lives(owner["pid"], float(owner.get("started_unix", 0.0))) else "killed"
    if owner:
        return "unknown"  # on another machine
    if not marks or marks[-1]["kind"] == "start":
        return "finished" if (run_dir / "final").is_dir() and not marks else "unknown"
    end = marks[-1]
    if end.get("problem"):
        return "failed"
    total = end.get("total_steps")
    done = isinstance(total, int) and int(end.get("steps", 0)) >= total
    # A start that found the run finished changed nothing about that.
    return "finished" if done and end.get("exit_code") in (None, 0, FinishedError.exit_code) else "stopped"


def _lives(pid: int, since: float) -> bool:
    """Whether the process that took a lock at `since` still runs: another one may have got its number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        ticks = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return True
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK") < since + 5.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What makes a rule apply to a record."""

    text: str
    """A sentence with the numbers."""
    numbers: Mapping[str, Any]
    """The same numbers by name, as plain values."""
