r"""Runs a program that a model wrote against the tests of a dataset row. What is trusted: neither.

    program = last_code_block("Sure!\n```python\ndef add(a, b):\n    return a + b\n```")
    run_tests(program, ["assert add(1, 2) == 3"])      -> Execution(outcome=PASSED, passed=1, total=1, ...)
    run_tests("import os; os._exit(0)", [...])         -> FAILED, "the program ended before its tests did"
    run_tests("while True: pass", [...])               -> TIMEOUT
    run_tests(program, ["assert add(1, 2) = 3"])       -> ValueError: the row is at fault

Tests are Python source with `assert` statements that call what the program defines; only the standard library is there.
They run in a process of their own and call the program, which runs in another, over a socket: arguments and results
that are plain values travel as copies and are compared on the tests' side. So a program can neither print, patch, exit
nor compare itself into passing; all it can do is return values. `areal.reward._remote` has the details.

In force for both processes where the kernel offers them, listed in `Execution.isolation`: limits on processor time,
address space, file size, files and processes; an empty environment; no network; no process but its own in sight; no
file but the standard library readable, none but those of an empty temporary folder writable; no privileges; nothing
executable; not root. Everything is killed at the time limit, and with the process that asked.

What is not prevented: filling the disk with many files that each stay below the limit; using processor and memory
bandwidth until the time limit; bugs of the kernel and of Python; starting processes when root could not be given up,
because only root can read the interpreter (they end with the program all the same); and, where a kernel offers neither
namespaces nor Landlock (macOS, some containers), reading what the user may read, and the network. It is not a
virtual machine.

Not supported in tests: third-party libraries, threads, coroutines of the program, and `isinstance` of a plain value
with a class of the program. Objects of the program can be used (attributes, calls, items, operators), but never equal a
plain value.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from areal.api import ArealError
from areal.reward._sandbox import ProcessLimits
from areal.reward.fences import last_block
from areal.utils.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); from areal.reward._execution_child import main; "
    "sys.path.pop(0); main()"
)
_STARTUP_SECONDS: Final = 30.0
"""For Python to start and confine itself; a machine that needs longer is in trouble, and the model is not to blame."""
_ENDING_SECONDS: Final = 5.0
_CHUNK: Final = 1 << 16
_PYTHON_LABELS: Final = frozenset({"py", "python", "python3"})


class ExecutionError(ArealError, RuntimeError):
    """The processes could not be started or were lost, for a reason that is not the program's. Worth a retry."""


class Outcome(StrEnum):
    """How a program fared."""

    PASSED = "passed"
    FAILED = "failed"
    """A test failed, or the program raised, crashed, ran out of memory or ended early."""
    TIMEOUT = "timeout"
    BROKEN_TESTS = "broken_tests"
    """The tests import what is not there, or pass without the program: the row is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use; the tests' process has the same."""

    wall_seconds: float = 10.0
    """For the program and all of its tests, from when it is about to run."""
    memory_megabytes: int = 512
    """Address space, about 30 of which are the interpreter's."""
    file_megabytes: int = 1
    """Largest file it may write."""
    output_bytes: int = 10_000
    """How much of what it prints is kept; the rest is read and dropped."""

    def __post_init__(self) -> None:
        if self.wall_seconds <= 0 or self.memory_megabytes < 64 or self.file_megabytes < 0 or self.output_bytes < 0:
            raise ValueError(f"{self}; expected wall_seconds > 0, memory_megabytes >= 64, and the others >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Result of one run."""

    outcome: Outcome
    passed: int
    """Tests before the first that failed."""
    total: int
    detail: str
    """Why it did not pass: the failing line, or the exception."""
    output: str
    """Beginning of what the program wrote to its standard output and error."""
    seconds: float
    isolation: tuple[str, ...]
    """What was in force around the program, e.g. ("network namespace", ..., "landlock")."""


def last_code_block(text: str) -> str | None:
    """Return the content of the last fenced block labelled as Python, else of the last one without a label.

    None when there is neither, or when the last fence is never closed: the answer was cut off.
    """
    block = last_block(text, _PYTHON_LABELS)
    return None if block is None else block[1]


def checked_tests(tests: Any) -> list[str]:
    """Return the tests of a row as a list of sources; a text is a list of one.

    Raises ValueError when they are no text, do not compile, or assert nothing.
    """
    sources = [tests] if isinstance(tests, str) else tests
    if not isinstance(sources, list | tuple) or not sources or not all(isinstance(item, str) for item in sources):
        raise ValueError(f"the row's tests are {tests!r:.100}, expected Python source or a list of it")
    for number, source in enumerate(sources, 1):
        try:
            tree = ast.parse(source)
            compile(tree, f"test {number}", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"test {number} of the row does not compile: {error}") from error
        if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
            raise ValueError(f"test {number} of the row has no assert statement, so any program would pass it")
    return list(sources)


def run_tests(program: str, tests: str | Sequence[str], limits: Limits | None = None) -> Execution:
    """Run a program against tests; see the top of this file for what they are and what is enforced.

    Raises ValueError for tests that could not fail or cannot run, ExecutionError when no process could be started.
    """
    sources, limits = checked_tests(tests), limits or Limits()
    with scratch_folder("areal-program-") as folder:
        run = _Run(str(folder), program, sources, limits)
        try:
            return run.result()
        finally:
            run.close()


@dataclass(slots=True)
class _Run:
    """One guard process and the pipes to it."""

    folder: str
    program: str
    tests: list[str]
    limits: Limits
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _guard: subprocess.Popen[bytes] | None = None
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _output: bytearray = field(default_factory=bytearray)

    def result(self) -> Execution:
        control, status, reports, output = self._start()
        started = time.monotonic()
        timely = self._listen(reports, output, started + _STARTUP_SECONDS)
        if not self._lines:
            os.set_blocking(output.fileno(), False)
            self._output += output.read(_CHUNK) or b""  # what they said last may not have been read yet
            tail = self._output.decode(errors="replace").strip().splitlines()[-1:]
            raise ExecutionError(
                f"the processes that test a program did not start: {' '.join(tail) or 'no reason given'}"
            )
        verdict: dict[str, Any] = {"outcome": Outcome.FAILED, "passed": 0, "ended": False}
        if len(self._lines) > 1:
            verdict = self._lines[1]
        ending = self._end(control, status, expected=bool(verdict["ended"]))
        seconds = time.monotonic() - started
        detail = str(verdict.get("detail", "the process of the tests was ended"))
        outcome = Outcome(verdict["outcome"])
        if not timely:
            outcome, detail = Outcome.TIMEOUT, f"no verdict within {self.limits.wall_seconds:g} seconds"
        elif verdict["ended"] and ending not in {"", "killed"}:
            detail += f" (exit status {ending})"
        if outcome is Outcome.BROKEN_TESTS:
            raise ValueError(f"the row's tests are at fault: {detail}")
        return Execution(
            outcome=outcome,
            passed=int(verdict["passed"]),
            total=len(self.tests),
            detail=detail,
            output=self._output.decode(errors="replace"),
            seconds=seconds,
            isolation=tuple(self._lines[0]["isolation"]),
        )

    def _start(self) -> tuple[IO[bytes], IO[bytes], IO[bytes], IO[bytes]]:
        """Start the guard; returns our ends of control, status, verdict and output."""
        control_theirs, control = self._pipe()
        status, status_theirs = self._pipe()
        verdict, verdict_theirs = self._pipe()
        output, output_theirs = self._pipe()
        program = self._file(self.program.encode("utf-8", "surrogatepass"))
        tests = self._file(json.dumps(self.tests).encode())
        theirs = {
            "control": control_theirs,
            "status": status_theirs,
            "verdict": verdict_theirs,
            "program": program,
            "tests": tests,
        }
        numbers = {name: file.fileno() for name, file in theirs.items()}
        limits = ProcessLimits(
            cpu_seconds=int(self.limits.wall_seconds) + 1,
            memory_megabytes=self.limits.memory_megabytes,
            file_megabytes=self.limits.file_megabytes,
        )
        settings = json.dumps({"folder": self.folder, "limits": asdict(limits), **numbers})
        root = str(Path(__file__).resolve().parents[2])
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _START, settings, root],
                cwd=self.folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output_theirs,
                stderr=output_theirs,
                pass_fds=tuple(numbers.values()),
                start_new_session=True,
            )
        except OSError as error:
            raise ExecutionError(f"no process could be started to test a program: {error}") from error
        for file in (*theirs.values(), output_theirs):
            file.close()
        return control, status, verdict, output

    def _pipe(self) -> tuple[IO[bytes], IO[bytes]]:
        read, write = os.pipe()
        return self._stack.enter_context(os.fdopen(read, "rb", 0)), self._stack.enter_context(os.fdopen(write, "wb", 0))

    def _file(self, content: bytes) -> IO[bytes]:
        file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by the stack
        file.write(content)
        file.flush()
        return file

    def _listen(self, verdict: IO[bytes], output: IO[bytes], deadline: float) -> bool:
        """Collect verdict and output until the verdict is complete or its writer gone; False when time ran out."""
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(verdict, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, _CHUNK)
                    if key.fileobj is output:
                        self._output += chunk[: self.limits.output_bytes - len(self._output)]
                        if not chunk:
                            selector.unregister(output)
                        continue
                    *complete, pending = (pending + chunk).split(b"\n")
                    if complete and not self._lines:
                        deadline = time.monotonic() + self.limits.wall_seconds
                    self._lines += [json.loads(line) for line in complete]
                    if not chunk or len(self._lines) > 1:
                        return True
        return False

    def _end(self, control: IO[bytes], status: IO[bytes], *, expected: bool) -> str:
        """Have the guard end everything; returns how the program ended: a status, "killed", or "" when unknown."""
        if expected:
            control.write(b"e")
        control.close()
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(status, selectors.EVENT_READ)
            while selector.select(_ENDING_SECONDS) and (chunk := os.read(status.fileno(), _CHUNK)):
                text += chunk
        process, _, ending = text.decode().partition("\n")
        if not ending and process:
            # The guard itself was killed, so nobody has reaped the program: the number is still its own.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        return ending.strip()

    def close(self) -> None:
        """Close the pipes, and see to it that nothing of the group is left."""
        self._stack.close()
        if self._guard is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
