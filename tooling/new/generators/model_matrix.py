"""`areal-new model --matrix FILE.json`: generate, test and verify many families at once, in a scratch worktree.

FILE.json holds a list of model types, or {"models": [{"model_type", "tiny_kwargs"}], "synthetic": [{"name", "base",
"overrides"}]}; a synthetic config is loaded by the family of its base type, and gets a family of its own where that one
refuses it. Each family goes through the same
commands as a person's would: analysis, `areal-new model`, its generated test; then `areal.porting.verify`, which
shares no code with them, tries to catch it being wrong. The worktree is of the last commit and is removed at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ChecksFailedError, UsageError
from tooling.cli.report import progress
from tooling.kit.kind import CheckResult, Findings
from tooling.new.generators.model_children import Children, ended_like_interrupted, uninterrupted
from tooling.new.generators.model_matrix_rows import Entry, Row, read_entries, summary, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    """A worktree of the last commit in a temporary folder. Nothing of it is left, also when it is interrupted."""
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
        self._children = Children()
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(scratch)}

    def run(self, entries: Sequence[Entry], jobs: int) -> Iterator[Row]:
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

    def _refused_changes(self, entries: Sequence[Entry]) -> Iterator[Row]:
        """Changed configs that the family of the plain one refuses: each is tried as the config of a family."""
        for entry in entries:
            for change in entry.synthetic:
                if self._named.get(str(change["name"])) is not None:
                    yield self._family(
                        Entry(
                            model_type=entry.model_type,
                            tiny={**entry.tiny, **change["overrides"]},
                            own_name=str(change["name"]),
                        )
                    )

    def _family(self, entry: Entry) -> Row:
        row = Row(name=entry.name, model_type=entry.model_type)
        try:
            self._prove(entry, row)
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            row.outcome, row.reason = "error", f"{type(error).__name__}: {error}"
        return row

    def _prove(self, entry: Entry, row: Row) -> None:
        report = self._analyse(entry, row)
        if report is None:
            return
        path = self._folder / f"{row.name}.report.json"
        path.write_text(json.dumps(report), encoding="utf-8")
        with self._writing, row.timed("generate"):
            for name in {row.name, Entry(model_type=entry.model_type).name}:  # they share the registry's key
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

    def _analyse(self, entry: Entry, row: Row) -> Mapping[str, Any] | None:
        """The report of a proven family; None when it was refused, which the row then says."""
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

    def _verify(self, entry: Entry, row: Row) -> None:
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
        command = [sys.executable, "-m", "tooling.new", *arguments, "--json", "--repo", str(self._scratch)]
        done = self._children.run(command, cwd=Path.cwd(), timeout=TIMEOUT_SECONDS)
        answer = json.loads(done.stdout)
        return answer if isinstance(answer, dict) else {}

    def _child(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [self._python, *arguments]
        return self._children.run(command, cwd=self._scratch, env=self._environment, timeout=TIMEOUT_SECONDS)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`git worktree ARGUMENTS`, in a session of its own: Ctrl-C must not reach it while it cleans up."""
    return Children().run(["git", "-C", str(root), "worktree", *arguments], cwd=root, timeout=TIMEOUT_SECONDS)
