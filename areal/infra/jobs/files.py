"""The folder of a job: its plan, its state, its private file, and where logs go.

    plan.json      what is to run; run.yaml has the    private.json   key, secrets and passed variables, mode 0600;
                   resolved configuration of the run   job.key has the key alone
    job.json       what became of it so far            meet.json      where runners meet, mode 0600
    cancel         somebody asked it to end            logs/          life-0000/ and start-0000-<incarnation>/
    earlier/       logs of earlier submissions         status/        a file per runner: its true exit code

The folder has mode 0700: logs of programs may hold what they were given.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import BusyError, CheckpointError, UsageError
from areal.infra.jobs.plan import CONFIG_FILE
from areal.infra.jobs.plan import FILE as PLAN_FILE
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.infra.jobs.plan import JobPlan

ENDED: Final = frozenset({"cancelled", "ended", "refused"})
"""States that are final."""
KEY_FILE: Final = "job.key"
"""The same key, as programs take it by the name of a file (servers.directory_key)."""
_MASK: Final = "***"


class Redactor:
    """Replaces secrets by *** in text that is copied or shown."""

    def __init__(self, secrets_: Mapping[str, str]) -> None:
        # Long ones first: one may contain another. Their lines, too, since text is often copied line by line.
        parts = {part for value in secrets_.values() for part in (value, *value.splitlines()) if len(part) > 3}
        self._values = sorted(parts, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        for value in self._values:
            text = text.replace(value, _MASK)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Private:
    """What nobody else may read."""

    key: bytes
    """Of the job, by which its processes know each other."""
    secrets: dict[str, str]
    passed: dict[str, str]


class JobFolder:
    """Reads and writes the files of one job."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def plan_path(self) -> Path:
        """The plan."""
        return self.path / PLAN_FILE

    @property
    def logs(self) -> Path:
        """Folder of logs."""
        return self.path / "logs"

    def life(self, number: int) -> Path:
        """Return the log folder of one allocation: of its runners, and of processes that outlive a start."""
        return self.logs / f"life-{number:04d}"

    def prepare(self, plan: JobPlan, environment: Mapping[str, str]) -> None:
        """Write plan, configuration and private file. Raises CheckpointError when the folder cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)  # it may have been there
            self._set_logs_aside(plan.keep_logs)
            for folder in (self.logs, self.path / "status"):
                folder.mkdir(exist_ok=True)
            stale = [self.path / name for name in ("cancel", "meet.json", "job.json", CONFIG_FILE)]
            for path in (*stale, *(self.path / "status").glob("*.json")):
                path.unlink(missing_ok=True)
            private: dict[str, Any] = {
                "key": secrets.token_hex(32),
                "secrets": {name: environment[name] for name in plan.secrets},
                "passed": {name: environment[name] for name in plan.passed},
            }
            self.write_private("private.json", json.dumps(private))
            self.write_private(KEY_FILE, private["key"])
            if plan.config:
                self.write_private(CONFIG_FILE, plan.config)
            atomic_write(self.plan_path, plan.to_json())
        except OSError as error:
            raise CheckpointError(
                f"cannot write the job's folder {self.path}: {error}",
                where=str(self.path),
                fix="choose another job.directory",
            ) from error

    def _set_logs_aside(self, keep: int) -> None:
        """Move the logs of an earlier submission to earlier/, of which the newest are kept."""
        if self.logs.is_dir():
            earlier = self.path / "earlier"
            earlier.mkdir(exist_ok=True)
            os.rename(self.logs, earlier / f"{time.time_ns():020d}")
            for path in sorted(earlier.iterdir())[:-keep]:
                shutil.rmtree(path, ignore_errors=True)

    def write_private(self, name: str, content: str) -> None:
        """Write a file that only the owner reads, all at once."""
        temporary = self.path / f".{name}.{secrets.token_hex(6)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(temporary, self.path / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def private(self) -> Private:
        """Read the private file. Raises UsageError when others may read it, or it is missing."""
        path = self.path / "private.json"
        try:
            if path.stat().st_mode & 0o077:
                raise UsageError(
                    f"{path} can be read by others", where=str(path), fix="remove the job's folder and submit again"
                )
            data = json.loads(path.read_text(encoding="utf-8"))
            return Private(key=data["key"].encode(), secrets=data["secrets"], passed=data["passed"])
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(
                f"cannot read {path}: {error}", where=str(path), fix="see that this node sees job.directory"
            ) from error

    def holds_configuration(self, plan: JobPlan) -> bool:
        """Return whether run.yaml is what the plan says, where the plan has a configuration."""
        try:
            return not plan.config or (self.path / CONFIG_FILE).read_text(encoding="utf-8") == plan.config
        except (OSError, UnicodeDecodeError):
            return False

    def state(self) -> dict[str, Any]:
        """Return job.json; empty without one."""
        try:
            data = json.loads((self.path / "job.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def set_state(self, state: str, reason: str = "", **more: Any) -> None:
        """Change job.json: the state, why, and further fields; those that are not given stay."""
        with self.locked("job.lock"):
            before = self.state()
            after = {
                **before,
                **more,
                "state": state,
                "reason": reason,
                "sequence": int(before.get("sequence", 0)) + 1,
                "writer": f"{socket.gethostname()}:{os.getpid()}",
                "unix_time": round(time.time(), 3),
            }
            atomic_write(self.path / "job.json", json.dumps(after, indent=1) + "\n")

    def set_status(self, runner: str, status: int, text: str, **more: Any) -> None:
        """Note how a runner ended."""
        content = {"runner": runner, "exit_code": status, "text": text, **more}
        atomic_write(self.path / "status" / f"{runner}.json", json.dumps(content) + "\n")

    def status(self, runner: str) -> dict[str, Any]:
        """Return how a runner ended; empty while it runs."""
        try:
            data = json.loads((self.path / "status" / f"{runner}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def clear_status(self) -> None:
        """Forget how runners of an earlier allocation ended."""
        for path in (self.path / "status").glob("*.json"):
            path.unlink(missing_ok=True)

    def note(self, kind: str, text: str, **more: Any) -> None:
        """Append a line to events.jsonl; a disk that refuses loses it."""
        line = {"unix_time": round(time.time(), 3), "event": kind, "text": text, **more}
        try:
            with (self.logs / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            return

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked the job to end for good."""
        return (self.path / "cancel").exists()

    def ask_to_end(self) -> None:
        """Ask that; whoever would start it again looks here first."""
        (self.path / "cancel").touch()

    def new_life(self, number: int | None = None) -> int:
        """Make the log folder of an allocation and return its number; None takes the next one."""
        if number is None:
            found = [int(path.name.rpartition("-")[2]) for path in self.logs.glob("life-[0-9]*")]
            number = max(found, default=-1) + 1
        self.life(number).mkdir(parents=True, exist_ok=True)
        return number

    @contextmanager
    def locked(self, name: str, *, busy: str = "") -> Iterator[None]:
        """Hold a lock of the folder. busy: raise BusyError with this message instead of waiting."""
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            yield
        except BlockingIOError:
            raise BusyError(busy, where=str(self.path / name), fix="wait until it has ended") from None
        finally:
            os.close(descriptor)
