"""Runs the tests of a unit: in the repository after a plan was applied, or on a copy before anything is written.

    run_tests(root, ["tests/areal/reward/test_digits.py"], python=python)   # CheckResult("tests", ok=True, seconds=1.2)

The tests are a child process without a terminal. They leave no bytecode and no caches in the repository, and are ended
with everything they started when they run too long.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import ToolError, UsageError
from tooling.kit.kind import CheckResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.cli.git import Repository
    from tooling.kit.change.plan import Plan
    from tooling.new.warm import WarmPython

TIMEOUT_SECONDS = 600.0
MAX_OVERLAY_BYTES = 2 * 1024**3
"""A repository with more than this in its files is not copied for `--test staged`."""
_TAIL_LINES = 40
_NO_TESTS_COLLECTED = 5
_SUMMARY = re.compile(r"^.*\b\d+ [a-z]+\b.* in \d+\.\d+s", re.MULTILINE)
_OUTCOME = re.compile(r"\b([1-9]\d*) (passed|failed|skipped|xfailed|xpassed|error)s?\b")
"""What pytest counts in its last line; warnings are none of it."""


def run_tests(
    root: Path,
    paths: Sequence[str],
    *,
    python: Path,
    timeout: float = TIMEOUT_SECONDS,
    name: str = "tests",
    warm: WarmPython | None = None,
) -> CheckResult:
    """Run test files with pytest, `root` first on the import path; in the warm process, where there is one.

    A failure is a result, with the end of pytest's output as its detail; so is running past `timeout` seconds. Without
    any path there is nothing to run, which the detail says. Raises UsageError when the interpreter cannot be started.
    """
    if not paths:
        return CheckResult(name, ok=True, seconds=0.0, detail="no tests to run")
    options = ["-q", "--no-header", "-p", "no:cacheprovider"]
    options += [f"./{path}" if path.startswith("-") else path for path in paths]
    command = [os.fspath(python), "-m", "pytest", *options]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="areal-new-tests-") as scratch:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "PYTHONPATH": os.pathsep.join([os.fspath(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": os.fspath(Path(scratch) / "hypothesis"),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        if warm is not None and warm.started:
            status, output = _run_warm(warm, options, environment, timeout)
        else:
            status, output = _run(command, root, environment, timeout)
    detail = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
    if status == 0:
        detail = ""
    elif f"{command[0]}: No module named pytest" in output:
        detail = f"pytest is not installed for {command[0]}: install it there, or use --no-test"
    elif status is None:
        detail = f"ran past {timeout:g} s and was ended\n{detail}".strip()
    elif status == _NO_TESTS_COLLECTED:
        detail = f"pytest found no test in the files\n{detail}".strip()
    elif status < 0:
        detail = f"ended by signal {-status}\n{detail}".strip()
    else:
        detail = detail or f"pytest ended with status {status}"
    summary = _SUMMARY.findall(output)
    outcomes = {word: int(count) for count, word in _OUTCOME.findall(summary[-1])} if summary else {}
    return CheckResult(name, status == 0, round(time.monotonic() - started, 3), detail, outcomes)


def staged_tests(
    repository: Repository,
    plan: Plan,
    paths: Sequence[str],
    *,
    python: Path,
    timeout: float = TIMEOUT_SECONDS,
) -> CheckResult:
    """Run test files on a copy of the repository as it will be after the plan; the repository itself is only read.

    The copy holds what git lists, untracked files included, and is removed whatever happens. Raises UsageError when
    the repository is too large to copy.
    """
    root, total = repository.root, 0
    with tempfile.TemporaryDirectory(prefix="areal-new-staged-") as folder:
        overlay = Path(folder) / root.name
        for path in repository.files():
            source, target = root / path, overlay / path
            if not source.is_symlink() and not source.is_file():
                continue  # deleted but still in the index, or a submodule
            total += source.lstat().st_size
            if total > MAX_OVERLAY_BYTES:
                limit = MAX_OVERLAY_BYTES // 1024**3
                raise UsageError(f"the repository holds more than {limit} GiB of files", fix="use --test after")
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(source, target, follow_symlinks=False)
            except OSError as error:
                raise ToolError(f"cannot copy for the staged tests: {error.strerror}", where=path) from error
        for change in plan.changes:
            target = overlay / change.path
            if change.after is None:
                target.unlink(missing_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(change.after)
        return run_tests(overlay, paths, python=python, timeout=timeout, name="tests-staged")


def _run_warm(
    warm: WarmPython, options: list[str], environment: dict[str, str], timeout: float
) -> tuple[int | None, str]:
    """As `_run`, in a fork of the warm process."""
    try:
        done = warm.run("pytest", options, seconds=timeout, environment=environment)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def _run(command: list[str], root: Path, environment: dict[str, str], timeout: float) -> tuple[int | None, str]:
    """Run a program, and end it with everything it started when it takes too long or this process is interrupted.

    Return its exit status (None: out of time) and everything printed.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}", fix="set up the environment first") from error
    with process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the tests have a session of their own
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, _ = process.communicate()
            return None, output.decode(errors="replace")
        return process.returncode, output.decode(errors="replace")
