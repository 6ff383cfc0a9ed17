"""Generates, tests and verifies many families at once, in a scratch worktree: `areal-new model --matrix FILE.json`.

FILE.json holds a list of model types, or {"models": [{"model_type", "tiny_kwargs"}], "synthetic": [{"name", "base",
"overrides"}]}; a synthetic config is loaded by the family of its base type, and gets a family of its own where that one
refuses it. Each family goes through the same commands as a person's would: analysis, `areal-new model`, its generated
test; then `areal.porting.verify`, which shares no code with them, tries to catch it being wrong. The worktree is of the
last commit and is removed at the end. Child processes never outlive the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tooling.cli.errors import ChecksFailedError, UsageError
from tooling.cli.report import progress
from tooling.kit.kind import CheckResult
from tooling.new.change import Findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType


TIMEOUT_SECONDS: Final = 900.0
JOINT_TRIALS: Final = 12


def run_matrix(root: Path, python: Path, file: str, *, jobs: int = 0) -> Findings:
    """One row for each family. jobs: processes at a time, 0 for one per core.

    Raises UsageError for an unreadable file, ChecksFailedError when a family that was generated fails its own test or
    the verification: such a family must not exist.
    """
    entries = read_entries(file)
    with ended_like_interrupted(), _worktree(root) as scratch:
        rows = sorted(_Matrix(scratch, python, scratch.parent).run(entries, jobs), key=lambda row: row.name)
    findings = Findings(table(rows), {"families": [row.to_json() for row in rows], "summary": summary(rows)})
    broken = [row for row in rows if row.outcome in ("failed", "wrong", "error")]
    if broken:
        checks = tuple(CheckResult(f"model {row.name}", False, row.total, row.reason) for row in broken)
        raise ChecksFailedError(
            f"{len(broken)} of {len(rows)} families are neither proven nor refused",
            checks=checks,
            where=", ".join(row.name for row in broken[:8]),
            fix="the rows say what failed; such a family must not be registered",
            text=findings.text,
            details=findings.data,
        )
    return findings


@contextlib.contextmanager
def _worktree(root: Path) -> Iterator[Path]:
    """Add a worktree of the last commit in a temporary folder. Nothing of it is left, also when it is interrupted."""
    with tempfile.TemporaryDirectory(prefix="areal-matrix-") as folder:
        scratch = Path(folder) / "repository"
        try:
            done = _git(root, "add", "--quiet", "--detach", str(scratch), "HEAD")
            if done.returncode:
                raise UsageError(
                    f"git worktree add failed: {done.stderr.strip()}",
                    where=str(root),
                    fix="the matrix needs a git repository with at least one commit",
                )
            yield scratch
        finally:
            with uninterrupted():
                # Twice: an `add` that was interrupted leaves it locked.
                if _git(root, "remove", "--force", "--force", str(scratch)).returncode:
                    shutil.rmtree(scratch, ignore_errors=True)
                    _git(root, "prune")


class _Matrix:
    """The runs of one matrix. Analyses and tests go in parallel; changes of the scratch repository one by one."""

    def __init__(self, scratch: Path, python: Path, folder: Path) -> None:
        self._scratch = scratch
        self._python = str(python)
        self._folder = folder
        self._writing = threading.Lock()
        self._named: dict[str, str] = {}
        """Changed config to why the family of the plain one refused it."""
        self._children = ChildProcesses()
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(scratch)}

    def run(self, entries: Sequence[MatrixEntry], jobs: int) -> Iterator[MatrixRow]:
        """Rows as they are finished."""
        with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
            try:
                futures = [pool.submit(self._family, entry) for entry in entries]
                for number, future in enumerate(as_completed(futures), 1):
                    row = future.result()
                    with progress(f"{number} of {len(entries)}: {row.name} {row.outcome}"):
                        yield row
            except BaseException:  # leaving the pool waits for its threads, and these for their children
                pool.shutdown(wait=False, cancel_futures=True)
                self._children.end()
                raise
        yield from self._refused_changes([entry for entry in entries if entry.synthetic])

    def _refused_changes(self, entries: Sequence[MatrixEntry]) -> Iterator[MatrixRow]:
        """Yield changed configs that the family of the plain one refuses: each is tried as the config of a family."""
        for entry in entries:
            for change in entry.synthetic:
                if self._named.get(str(change["name"])) is not None:
                    yield self._family(
                        MatrixEntry(
                            model_type=entry.model_type,
                            tiny={**entry.tiny, **change["overrides"]},
                            own_name=str(change["name"]),
                        )
                    )

    def _family(self, entry: MatrixEntry) -> MatrixRow:
        row = MatrixRow(name=entry.name, model_type=entry.model_type)
        try:
            self._prove(entry, row)
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            row.outcome, row.reason = "error", f"{type(error).__name__}: {error}"
        return row

    def _prove(self, entry: MatrixEntry, row: MatrixRow) -> None:
        report = self._analyse(entry, row)
        if report is None:
            return
        path = self._folder / f"{row.name}.report.json"
        path.write_text(json.dumps(report), encoding="utf-8")
        with self._writing, row.timed("generate"):
            for name in {row.name, MatrixEntry(model_type=entry.model_type).name}:  # they share the registry's key
                if (self._scratch / "areal/models" / name).is_dir():
                    self._tool("undo", "model", name)
            answer = self._tool("model", row.name, "--report", str(path), "--no-test")
        if not answer.get("ok"):
            row.outcome, row.reason = "failed", f"not generated: {answer.get('error') or answer}"
            return
        row.count_lines(self._scratch)
        with row.timed("test"):
            done = self._child(["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", str(row.test_file())])
        if done.returncode:
            row.outcome, row.reason = "failed", " ".join(done.stdout.strip().splitlines()[-3:])[-400:]
            return
        self._verify(entry, row)

    def _analyse(self, entry: MatrixEntry, row: MatrixRow) -> Mapping[str, Any] | None:
        """Return the report of a proven family; None when it was refused, which the row then says."""
        command = ["-m", "areal.porting", entry.model_type, "--json"]
        if entry.tiny:
            tiny = self._folder / f"{row.name}.tiny.json"
            tiny.write_text(json.dumps(entry.tiny), encoding="utf-8")
            command += ["--tiny", str(tiny)]
        with row.timed("analyse"):
            done = self._child(command)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            row.outcome, row.reason = "error", (done.stderr.strip().splitlines() or ["the analysis said nothing"])[-1]
            return None
        row.take_report(report)
        return report if row.outcome == "proven" else None

    def _verify(self, entry: MatrixEntry, row: MatrixRow) -> None:
        tiny = self._folder / f"{row.name}.verify.json"
        models = [{"model_type": entry.model_type, "tiny_kwargs": entry.tiny}] if entry.tiny else []
        tiny.write_text(json.dumps({"models": models, "synthetic": list(entry.synthetic)}), encoding="utf-8")
        command = ["-m", "areal.porting.verify", entry.model_type, "--json", "--trials", str(JOINT_TRIALS)]
        with row.timed("verify"):
            done = self._child([*command, "--tiny", str(tiny)])
        if not done.stdout.strip():
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            row.outcome, row.reason = "error", f"the verification failed: {said[-1]}"
            return
        found = json.loads(done.stdout.strip().splitlines()[-1])
        row.take_verification(found)
        self._named |= {name: said for name, said in found["named"].items() if isinstance(said, str)}

    def _tool(self, *arguments: str) -> dict[str, Any]:
        """`areal-new ARGUMENTS --json` of this installation, in the scratch repository."""
        command = [
            sys.executable,
            "-m",
            "areal_harness",
            "tooling.new",
            *arguments,
            "--json",
            "--repo",
            str(self._scratch),
        ]
        done = self._children.run(command, cwd=Path.cwd(), timeout=TIMEOUT_SECONDS)
        answer = json.loads(done.stdout)
        return answer if isinstance(answer, dict) else {}

    def _child(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [self._python, *arguments]
        return self._children.run(command, cwd=self._scratch, env=self._environment, timeout=TIMEOUT_SECONDS)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`git worktree ARGUMENTS`, in a session of its own: Ctrl-C must not reach it while it cleans up."""
    return ChildProcesses().run(["git", "-C", str(root), "worktree", *arguments], cwd=root, timeout=TIMEOUT_SECONDS)


@dataclass(frozen=True, kw_only=True)
class MatrixEntry:
    """One family to try."""

    model_type: str
    tiny: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its tiny config; empty: the analysis makes one up."""
    synthetic: tuple[Mapping[str, Any], ...] = ()
    """Changed configs that the family must load correctly: {"name", "base", "overrides"}."""

    own_name: str = ""
    """Where the model type is not to be the name."""

    @property
    def name(self) -> str:
        """Name of the family to generate."""
        name = re.sub(r"[^a-z0-9]+", "_", (self.own_name or self.model_type).lower())
        return name.strip("_")


@dataclass(kw_only=True)
class MatrixRow:
    """What became of one family."""

    name: str
    model_type: str
    outcome: Literal["proven", "refused", "failed", "wrong", "error"] = "proven"
    """failed: generated, but not equal in its own test; wrong: caught by the verification; error: a crash."""
    reason: str = ""
    title: str = ""
    parity: float = 0.0
    """Largest difference of logits over all proven configs."""
    parity_ratio: float = 0.0
    """The same over the tolerance of its config."""
    variants: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds within the analysis."""
    verification: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The model type, and which config of it where that matters."""
        plain = MatrixEntry(model_type=self.model_type).name
        return self.model_type if self.name == plain else f"{self.model_type} ({self.name})"

    @property
    def total(self) -> float:
        """Seconds until a person has the family: without the verification."""
        return sum(value for name, value in self.seconds.items() if name != "verify")

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of the body to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - started, 2)

    def test_file(self) -> Path:
        """Generated test, relative to the repository."""
        return Path("tests/areal/models") / f"test_{self.name}.py"

    def count_lines(self, root: Path) -> None:
        """Count what was generated."""
        family = sorted((root / "areal/models" / self.name).glob("*.py"))
        self.lines = {
            "family": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in family),
            "test": len((root / self.test_file()).read_text(encoding="utf-8").splitlines()),
        }

    def take_report(self, report: Mapping[str, Any]) -> None:
        """Outcome and figures of an analysis."""
        if report.get("error"):
            self.outcome, self.reason = "refused", str(report["error"])
            return
        self.title = str(report.get("title", ""))
        self.phases = dict(report.get("seconds", {}))
        if report["status"] != "proven":
            self.outcome = "refused"
            self.reason = "; ".join(f"{entry['feature']} at {entry['where']}" for entry in report.get("missing", ()))
            return
        variants = report.get("variants", ())
        self.variants = len(variants)
        self.parity = max((entry["parity"] for entry in variants), default=0.0)
        self.parity_ratio = max((entry["parity"] / entry["tolerance"] for entry in variants), default=0.0)

    def take_verification(self, found: Mapping[str, Any]) -> None:
        """Take what the verification says: anything wrong or crashed is wrong, nothing right is unproven."""
        self.verification = dict(found)
        if not found.get("equal"):
            refusals = [str(each["reason"]) for each in found.get("refusals", ())] or ["no config was possible"]
            self.outcome, self.reason = "failed", f"the verification could not load one config: {refusals[0]}"
        caught = [*found.get("wrong_configs", ()), *found.get("crashes", ())]
        if caught:
            self.outcome = "wrong"
            first = caught[0]
            said = first.get("reason") or f"{first.get('error_over_tolerance', 0.0):.1f} times the tolerance"
            self.reason = f"{len(caught)} configs, the first: {first['config']}: {said}"

    def to_json(self) -> dict[str, Any]:
        """All fields and the total."""
        return {**self.__dict__, "total_seconds": round(self.total, 2)}


def read_entries(file: str) -> list[MatrixEntry]:
    """Return the families of a matrix file. Raises UsageError naming what is wrong with it."""
    try:
        loaded = json.loads(Path(file).read_text(encoding="utf-8"))
        if isinstance(loaded, list):
            loaded = {"models": [{"model_type": name} if isinstance(name, str) else name for name in loaded]}
        synthetic = loaded.get("synthetic", [])
        entries = [
            MatrixEntry(
                model_type=str(model["model_type"]),
                tiny=dict(model.get("tiny_kwargs", {})),
                synthetic=tuple(entry for entry in synthetic if entry["base"] == model["model_type"]),
            )
            for model in loaded["models"]
        ]
    except (OSError, ValueError) as error:
        raise _no_matrix(file, f"cannot be read as JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_matrix(file, f"is not a matrix: {error!r}") from error
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise _no_matrix(file, f"names {', '.join(twice)} twice" if twice else "names no model type")
    return entries


def _no_matrix(file: str, what: str) -> UsageError:
    return UsageError(
        f"{file} {what}",
        where="--matrix",
        fix='write a JSON list of model types, or {"models": [{"model_type": "llama", "tiny_kwargs": {...}}]}',
    )


def summary(rows: Sequence[MatrixRow]) -> dict[str, Any]:
    """Return counts, and how long a family takes."""
    outcomes = [row.outcome for row in rows]
    proven = sorted(row.total for row in rows if row.outcome == "proven")
    counts: dict[str, Any] = {name: outcomes.count(name) for name in ("proven", "refused", "failed", "wrong", "error")}
    if proven:
        counts["seconds"] = {
            "median": round(statistics.median(proven), 1),
            "p90": round(proven[int(0.9 * (len(proven) - 1))], 1),
            "max": round(proven[-1], 1),
        }
        counts["lines_median"] = int(statistics.median(row.lines["family"] for row in rows if row.outcome == "proven"))
    return counts


def table(rows: Sequence[MatrixRow]) -> str:
    """Markdown: one line per family, then the counts."""
    lines = [
        "| model_type | outcome | parity | of tolerance | configs | lines | test lines | seconds | verified |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.outcome == "proven":
            found = row.verification
            checked = f"{found.get('equal', 0)} equal, {found.get('refused', 0)} refused"
            lines.append(
                f"| `{row.label}` | proven | {row.parity:.1e} | {row.parity_ratio:.2f} | {row.variants} | "
                f"{row.lines['family']} | {row.lines['test']} | {row.total:.1f} | {checked} |"
            )
        else:
            reason = " ".join(row.reason.replace("|", "/").split())[:240]
            lines.append(f"| `{row.label}` | {row.outcome}: {reason} | | | | | | {row.total:.1f} | |")
    counts = summary(rows)
    lines += ["", ", ".join(f"{counts[name]} {name}" for name in ("proven", "refused", "failed", "wrong", "error"))]
    if "seconds" in counts:
        seconds = counts["seconds"]
        lines[-1] += f"; {seconds['median']} s per family in the median, {seconds['p90']} s at 90 %, {seconds['max']} s"
    return "\n".join(lines)


ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process as Ctrl-C does, but would leave sessions of its children behind."""


class ChildProcesses:
    """The children of several threads; any of them may end all."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def run(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises subprocess.TimeoutExpired, and InterruptedError once all were ended."""
        with self._lock:
            if self._ended:
                raise InterruptedError("interrupted")
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            out, said = process.communicate(timeout=timeout)
        except BaseException:
            _kill(process)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, said)

    def end(self) -> None:
        """End all that run, with their own children, and start no more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)


@contextlib.contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """Inside, the signals that end a process raise KeyboardInterrupt, so that it cleans up. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, Ctrl-C and the like are not heard: for a moment's clean-up. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> Any:
    raise KeyboardInterrupt


def _kill(process: subprocess.Popen[str]) -> None:
    # A child that was waited for may have given its number to somebody else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
