r"""Runs a program that a model wrote, in Python, C++ or JavaScript, on one input after another. It is not trusted.

    with Program("print(int(input()) * 2)", PYTHON) as program:
        program.run(b"21\n")                     -> Run(verdict=ENDED, output=b"42\n", status=0, ...)
    with Program("int f(int x) { return 2 * x; }", CPP, function="f") as program:
        program.run(b"[21]")                     -> Run(verdict=ENDED, output=b"42", ...): arguments and result are JSON
    with Program("while True: pass", PYTHON, limits=RunLimits(cpu_seconds=1)) as program:
        program.run(b"")                         -> Run(verdict=TIME, ...)

C++ is compiled once. A program that does not compile has `compile_errors`; running it is a mistake of the caller. Every
run is a process of its own that starts from nothing: no file, thread or variable of the run before it is there.

In force around every run where the kernel offers them, listed in `Run.isolation`: limits on processor time, memory,
stack, file size and open files; on Linux also a namespace of users, processes, mounts and network of its own; a working
folder in memory, of limited size and number of files; Landlock, so that only system libraries can be read and nothing
outside that folder written; a filter of system calls (`areal.reward._seccomp`: threads yes; processes, sockets and
signals to others no); no privileges, an empty environment, not root. The compiler runs under the same, except that it
may start its own parts and read /usr. Everything is killed at the limit, and with the process that asked.

What is not prevented: using one processor and the allowed memory until the limit; learning whether a path exists; bugs
of the kernel. Where Landlock is missing (macOS, kernels before 5.13), files that the user may read can be read. It is
not a virtual machine.

A function in Python or JavaScript may be a method of a class `Solution`. One in C++ takes and returns integers, double,
bool, char, std::string, and std::vector and std::pair of these; it must not be overloaded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.reward._program_child import receive, send
from areal.reward._sandbox import ProcessLimits
from areal.reward.execution import ExecutionError
from areal.utils.guard import exit_text
from areal.utils.scratch import scratch_folder

if TYPE_CHECKING:
    from types import TracebackType

_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[2]); from areal.reward._program_child import main; sys.path.pop(0); main()"
)
_HARNESSES: Final = Path(__file__).parent / "harnesses"
_PATIENCE_SECONDS: Final = 30.0
"""Beyond a run's own limit, for starting Python and namespaces; a machine that needs longer is in trouble."""
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SOLUTION: Final = re.compile(r"\b(?:class|struct)\s+Solution\b")
_LOADERS: Final = ("/lib/ld-*.so*", "/lib64/ld-*.so*", "/lib/*-linux-gnu/ld-*.so*", "/usr/lib/ld-*.so*")
_COMPILE_MEGABYTES: Final = 2048
_COMPILED_MEGABYTES: Final = 64
_NODE_EXTRA_MEGABYTES: Final = 320
"""Writable memory of V8 beside the heap: code, threads' stacks and buffers of the garbage collector."""
_NODE_STACK_MEGABYTES: Final = 64


class Verdict(StrEnum):
    """How one run ended, before anybody compares its output."""

    ENDED = "ended"
    """By itself; `status` says how."""
    TIME = "time"
    """Killed for using too much processor or wall time."""
    OUTPUT = "output"
    """Killed for writing too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language programs can be in."""

    name: str
    labels: frozenset[str]
    """What a fence may call it."""
    tool: str = ""
    """The compiler or interpreter that has to be on PATH; "" needs none."""
    install: str = ""
    """How to get it."""

    def find_tool(self) -> str:
        """Return the tool's path, "" when none is needed. Raises ConfigError that says how to install it."""
        found = shutil.which(self.tool) if self.tool else ""
        if found is None:
            raise ConfigError(
                f"programs in {self.name} need {self.tool!r}, which is not on PATH; {self.install}, or leave "
                f"{self.name!r} out of `languages`"
            )
        return os.path.realpath(found) if found else ""


CPP: Final = Language(
    name="cpp",
    labels=frozenset({"cpp", "c++", "cc", "cxx"}),
    tool="g++",
    install="install it (Debian and Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`)",
)
JAVASCRIPT: Final = Language(
    name="javascript",
    labels=frozenset({"javascript", "js", "node", "nodejs"}),
    tool="node",
    install="install Node.js 18 or later (Debian and Ubuntu: `apt-get install nodejs`; or https://nodejs.org)",
)
PYTHON: Final = Language(name="python", labels=frozenset({"py", "python", "python3"}))
LANGUAGES: Final[dict[str, Language]] = {language.name: language for language in (CPP, JAVASCRIPT, PYTHON)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one run may use."""

    cpu_seconds: float = 6.0
    """Processor time, rounded up to whole seconds."""
    wall_seconds: float = 0.0
    """Wall time; 0 allows twice the processor time and two seconds, for a busy machine."""
    memory_megabytes: int = 512
    output_bytes: int = 8 << 20
    file_megabytes: int = 16
    """All files together where the folder is in memory, each of them elsewhere."""
    files: int = 256
    compile_seconds: float = 20.0

    def __post_init__(self) -> None:
        if min(self.cpu_seconds, self.compile_seconds) <= 0 or self.wall_seconds < 0 or self.memory_megabytes < 64:
            raise ValueError(f"{self}; expected seconds above 0 and memory_megabytes of at least 64")
        if self.output_bytes < 1 or self.file_megabytes < 1 or self.files < 8:
            raise ValueError(f"{self}; expected output_bytes and file_megabytes of at least 1, and files of at least 8")

    @property
    def wall(self) -> float:
        """Wall seconds in force."""
        return self.wall_seconds or 2 * self.cpu_seconds + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run."""

    verdict: Verdict
    status: int
    """Exit status, or the negative number of the signal that ended it."""
    output: bytes
    """Standard output, or the JSON that the function returned."""
    errors: str
    """The beginning of what it wrote to standard error."""
    cpu_seconds: float
    wall_seconds: float
    isolation: tuple[str, ...]

    @property
    def ending(self) -> str:
        """Say in words how it ended; "" for a clean end."""
        if self.verdict is not Verdict.ENDED:
            limit = "time" if self.verdict is Verdict.TIME else "output"
            return f"killed at the {limit} limit after {self.wall_seconds:.1f} s"
        if self.status == 0:
            return ""
        last = self.errors.strip().splitlines()[-1:] or [""]
        how = exit_text(self.status)
        return f"{how}: {last[0][:200]}" if last[0] else how


@dataclass(slots=True)
class Program:
    """One program, compiled where needed, that can be run on inputs. Use it in a `with` statement."""

    source: str
    language: Language
    function: str = ""
    """Function to call with the JSON list on standard input; "" runs the program as a whole."""
    limits: RunLimits = field(default_factory=RunLimits)
    compile_errors: str = field(init=False, default="")
    """Why it does not compile; "" when it does, and for languages that are not compiled beforehand."""
    _stack: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)
    _folder: str = field(init=False, default="")
    _channel: socket.socket | None = field(init=False, default=None)
    _num_runs: int = field(init=False, default=0)

    def __enter__(self) -> Program:
        """Start the supervisor and compile. Raises ConfigError without the tool, ExecutionError when nothing starts."""
        if self.function and _FUNCTION.fullmatch(self.function) is None:
            raise ValueError(f"the function's name is {self.function!r}, expected letters, digits and underscores")
        tool = self.language.find_tool()
        try:
            self._start()
            if self.language is CPP:
                self.compile_errors = self._compile(tool)
            elif self.language is JAVASCRIPT:
                self._write("main.js", self.source)
                self._write("harness.js", (_HARNESSES / "call.js").read_text(encoding="utf-8"))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything and remove its files."""
        self._stack.close()

    def run(self, stdin: bytes, *, wall_seconds: float | None = None) -> Run:
        """Run it once. wall_seconds: at most so long, below what the limits allow.

        Raises ExecutionError when the run was lost for a reason that is not the program's.
        """
        self._num_runs += 1
        limits = self.limits
        command, reach = self._command()
        memory, on_node = limits.memory_megabytes, self.language is JAVASCRIPT
        return self._ask(
            {
                "folder": f"{self._folder}/run-{self._num_runs}",
                "memory_folder": [limits.file_megabytes, limits.files],
                "command": command,
                "source": "" if command else self.source,
                "limits": _limits(
                    cpu_seconds=math.ceil(limits.cpu_seconds),
                    memory_megabytes=memory + _NODE_EXTRA_MEGABYTES if on_node else memory,
                    file_megabytes=limits.file_megabytes,
                    count_reserved=not on_node,
                    stack_megabytes=_NODE_STACK_MEGABYTES if on_node else memory,
                ),
                "reach": reach,
                "wall_seconds": limits.wall if wall_seconds is None else min(limits.wall, wall_seconds),
                "output_bytes": limits.output_bytes,
                "start_programs": False,
            },
            stdin,
        )

    def _command(self) -> tuple[list[str] | None, list[list[str]]]:
        """Return what to execute, None for Python, and the reach it needs as [readable, executable]."""
        loaders = [str(path) for pattern in _LOADERS for path in Path("/").glob(pattern[1:])]
        if self.language is CPP:
            return [f"{self._folder}/program"], [[], [f"{self._folder}/program", *loaders]]
        if self.language is JAVASCRIPT:
            node = self.language.find_tool()
            files = [f"{self._folder}/main.js", f"{self._folder}/harness.js"]
            flags = [f"--max-old-space-size={self.limits.memory_megabytes}"]
            flags.append(f"--stack-size={(_NODE_STACK_MEGABYTES - 8) << 10}")
            arguments = [files[1], files[0], self.function] if self.function else [files[0]]
            return [node, *flags, *arguments], [files, [node, *loaders]]
        return None, [[], []]

    def _compile(self, tool: str) -> str:
        """Compile C++; return the errors."""
        source = self.source
        if self.function:
            harness = (_HARNESSES / "call.hpp").read_text(encoding="utf-8")
            owner = "Solution::" if _SOLUTION.search(source) else ""
            # A program that brings a `main` along keeps it, under another name.
            source = f'{harness}\n#define main program_main\n#line 1 "main.cpp"\n{source}\n#undef main\n'
            source += f'#line 1 "harness"\nAREAL_CALL(&{owner}{self.function})\n'
        self._write("main.cpp", source)
        prefix = str(Path(tool).parents[1])
        seconds = self.limits.compile_seconds
        run = self._ask(
            {
                "folder": self._folder,
                "memory_folder": None,
                "command": [tool, "-std=c++17", "-O2", "-w", "-fmax-errors=3", "-o", "program", "main.cpp"],
                "source": "",
                "limits": _limits(
                    cpu_seconds=math.ceil(seconds),
                    memory_megabytes=_COMPILE_MEGABYTES,
                    file_megabytes=_COMPILED_MEGABYTES,
                ),
                "reach": [[], ["/usr", "/bin", "/lib", "/lib64", prefix]],
                "wall_seconds": 2 * seconds,
                "output_bytes": 1 << 16,
                "start_programs": True,
            },
            b"",
        )
        if run.verdict is Verdict.ENDED and run.status == 0:
            return ""
        return (run.errors.strip() or run.ending)[:2000]

    def _write(self, name: str, text: str) -> None:
        path = Path(self._folder) / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        path.chmod(0o644)

    def _start(self) -> None:
        self._folder = os.path.realpath(self._stack.enter_context(scratch_folder("areal-run-")))
        ours, theirs = socket.socketpair()
        self._stack.callback(ours.close)
        settings = json.dumps({"channel": theirs.fileno(), "folder": self._folder})
        root = str(Path(__file__).resolve().parents[2])
        try:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _START, settings, root],
                cwd=self._folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise ExecutionError(f"no process could be started to run a program: {error}") from error
        finally:
            theirs.close()
        self._stack.callback(_end, supervisor, ours)
        self._channel = ours

    def _ask(self, job: dict[str, Any], stdin: bytes) -> Run:
        assert self._channel is not None, "a program is run inside its `with` statement"
        job["function"] = self.function if not job["start_programs"] else ""
        self._channel.settimeout(job["wall_seconds"] + _PATIENCE_SECONDS)
        try:
            send(self._channel, json.dumps(job).encode())
            send(self._channel, stdin)
            header, output = receive(self._channel), receive(self._channel)
        except OSError as error:
            raise ExecutionError(f"the process that runs programs did not answer: {error}") from error
        if header is None or output is None:
            raise ExecutionError("the process that runs programs has ended")
        answer = json.loads(header)
        if answer["verdict"] not in set(Verdict):
            raise ExecutionError(f"a run was lost: {answer.get('errors') or 'its keeper was killed'}")
        return Run(
            verdict=Verdict(answer["verdict"]),
            status=answer["status"],
            output=output,
            errors=answer["errors"],
            cpu_seconds=answer["cpu_seconds"],
            wall_seconds=answer["wall_seconds"],
            isolation=tuple(answer["isolation"]),
        )


def _limits(**values: Any) -> dict[str, Any]:
    limits = asdict(ProcessLimits(**values))
    del limits["processes"]  # depends on the namespace, which the keeper knows
    return limits


def _end(supervisor: subprocess.Popen[bytes], channel: socket.socket) -> None:
    """Close the channel, upon which a keeper ends its program, then end the supervisor."""
    channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        supervisor.wait(2.0)
    # The group is the supervisor's until it is reaped, and reaped only by `wait` below or above.
    if supervisor.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
