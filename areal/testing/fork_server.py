"""Start processes that have torch and areal imported already, in hundredths of a second instead of seconds.

    with ForkServer() as server:
        results = server.run_ranks("worker.py", 2, ["--quick"], timeout_seconds=60)   # [{...}] of FILE in --out=FILE
        job = server.start("areal", ["train", "config.yaml"])                          # python -m areal train ...
        assert job.wait(60) == 0, job.stderr

A parent process imports `PRELOAD`, and forks a child for every program that it is asked to run. The children have
arguments, an environment, a working folder, output, an exit code and a session of their own, as if python had started
them. Tests of start-up, of imports and of the launcher itself need real processes. Unix only.

Several processes that need a server each have them forked from one that did the imports:

    with ForkOrigin() as origin:                # in one process
        with ForkServer(origin=origin.address)  # in any other
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from areal.api import EngineError
from areal.utils.guard import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

PRELOAD: Final = (
    "peft", "torch.distributed.pipelining",
    "torch.distributed.fsdp", "torch._dynamo", "transformers.models.llama.modeling_llama",
    "areal.models", "areal.engine.hf.loading", "areal.engine.train.checkpoint", "areal.trainer.run",
)  # fmt: skip
"""What children have imported."""
_START_SECONDS: Final = 300.0
_ORPHAN_SECONDS: Final = 10.0
"""How often an origin looks whether the process that started it is there."""
_OUTPUT_SHOWN: Final = 3000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A program to run: a file "*.py" or a module, as after `python` or `python -m`."""

    program: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    stdout: str
    stderr: str


@dataclass(eq=False, slots=True)
class ForkedProcess:
    """A child of the fork server, in a session of its own."""

    pid: int
    server: ForkServer = field(repr=False)
    output_path: Path
    error_path: Path

    @property
    def returncode(self) -> int | None:
        """Return the exit code, -N after signal N, None while it runs."""
        return self.server._returncode(self.pid, 0.0)

    def wait(self, timeout_seconds: float) -> int:
        """Return the exit code. Raises TimeoutError when it is still running then."""
        code = self.server._returncode(self.pid, timeout_seconds)
        if code is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_seconds:g} s")
        return code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and all that it started in its session."""
        if self.returncode is None:
            _kill_session(self.pid)
            self.wait(_START_SECONDS)

    @property
    def stdout(self) -> str:
        return self.output_path.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self.error_path.read_text(encoding="utf-8", errors="replace")


def _start_server(descriptor: int, preload: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "areal.testing.fork_server", *options, str(descriptor), *preload],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        pass_fds=[descriptor],
    )


class ForkOrigin:
    """A process that imports modules once, in the background, and forks servers that have them."""

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fork-origin-", ignore_cleanup_errors=True)
        self.address = str(Path(self._folder.name, "origin"))
        """What `ForkServer(origin=...)` takes, in this process or another."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            self._process = _start_server(listener.fileno(), preload, "--origin")

    def close(self) -> None:
        """End the process; the servers forked from it go on."""
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ForkServer:
    """The parent of such processes; close it, or use it in a `with` statement. It may be used from one thread.

    preload: what it imports. origin: the address of a `ForkOrigin`, whose imports it has instead.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD, *, origin: str = "") -> None:
        self.cpu_seconds = 0.0
        """User and system time of all children that ended."""
        self._ended: dict[int, int] = {}
        self._started: list[int] = []
        self._count = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="fork-server-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        if origin:
            with socket.socket(socket.AF_UNIX) as connected:
                try:
                    connected.connect(origin)
                except OSError as error:
                    raise EngineError(f"fork server: no origin at {origin}: {error}") from None
                self._link: Connection[Any, Any] = Connection(connected.detach())
        else:
            self._link, other = Pipe()
            with other:
                self._process = _start_server(other.fileno(), preload)
        ready = self._link.poll(_START_SECONDS)
        try:
            problem = self._link.recv() if ready else f"did not start within {_START_SECONDS:g} s"
        except (EOFError, OSError):
            problem = "ended while it imported its modules"
        if problem:
            self.close()
            raise EngineError(f"fork server: {problem}")

    def start(
        self,
        program: str | Path,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
    ) -> ForkedProcess:
        """Run a file "*.py" or a module.

        environment: on top of this process's own. folder: the working folder; this process's by default.
        """
        self._count += 1
        output = Path(self._scratch.name, f"{self._count}.out")
        errors = output.with_suffix(".err")
        output.touch()
        errors.touch()
        job = _Job(
            program=str(program),
            arguments=list(arguments),
            environment={**os.environ, **(environment or {})},
            folder=str(folder or Path.cwd()),
            stdout=str(output),
            stderr=str(errors),
        )
        try:
            self._link.send(job)
        except OSError:
            raise self._gone() from None
        while not self._started:
            self._receive(_START_SECONDS)
        return ForkedProcess(self._started.pop(), self, output, errors)

    def run_ranks(
        self, program: str | Path, world_size: int, arguments: Sequence[str] = (), *, timeout_seconds: float = 120.0
    ) -> list[dict[str, Any]]:
        """Run a program as the ranks of a process group, with `--out=FILE` and the arguments; the JSON lines of FILE.

        The ranks find what torchrun sets in their environment. Raises EngineError with the end of their output when one
        of them fails, or when they do not end in time; the others are killed then.
        """
        out = Path(self._scratch.name, f"{self._count}.jsonl")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        world = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [
            self.start(
                program,
                [f"--out={out}", *arguments],
                environment={**world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world_size)
        ]
        deadline = time.monotonic() + timeout_seconds
        try:
            while (codes := [rank.returncode for rank in ranks]) != [0] * world_size:
                if any(codes) or time.monotonic() > deadline:
                    what = f"failed ({codes})" if any(codes) else f"did not end in {timeout_seconds:g} s"
                    shown = "\n".join((rank.stdout + rank.stderr)[-_OUTPUT_SHOWN:] for rank in ranks)
                    raise EngineError(f"{world_size} processes {what}:\n{shown}")
                self._receive(0.05)
        finally:
            for rank in ranks:
                rank.kill()
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    def close(self) -> None:
        """End the server and every process that it started."""
        self._link.close()
        if self._process:
            self._process.wait()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, timeout_seconds: float) -> None:
        """Take in one message of the server, if one comes in time."""
        if self._link.poll(timeout_seconds):
            try:
                what, pid, code, cpu_seconds = self._link.recv()
            except (EOFError, OSError):  # a server that was killed with something unread resets the link
                raise self._gone() from None
            if what == "started":
                self._started.append(pid)
            else:
                self._ended[pid] = code
                self.cpu_seconds += cpu_seconds

    def _gone(self) -> EngineError:
        """Return the error to raise when the server is not there any more."""
        code = f" with exit code {self._process.wait()}" if self._process else ""
        return EngineError(f"fork server: ended{code}")

    def _returncode(self, pid: int, timeout_seconds: float) -> int | None:
        deadline = time.monotonic() + timeout_seconds
        while pid not in self._ended:
            left = deadline - time.monotonic()
            self._receive(max(0.0, left))
            if left <= 0:
                break
        return self._ended.get(pid)


# ------------------------------------------------------------------------------------------------- the server's side


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # the child has not made its session yet
        os.kill(pid, signal.SIGKILL)


def _serve(link: Connection[Any, Any]) -> _Job | None:
    """Fork until the link ends; returns the job in a child, and None in the server once it ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the tests, which close this server
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([link.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            while running:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                running.discard(pid)
                link.send(("ended", pid, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime))
        if link.fileno() not in ready:
            continue
        try:
            job: _Job = link.recv()
        except EOFError:
            for pid in running:
                _kill_session(pid)
            return None
        if pid := os.fork():
            running.add(pid)
            link.send(("started", pid, 0, 0.0))
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(woken)
        os.close(wake)
        link.close()
        return job


def _run(job: _Job, server: int) -> None:
    """Become the program and end as it ends, without taking apart all that was imported: that costs 0.3 s. server: the
    process that forked this one."""
    os.setsid()
    die_with_parent()  # the server ends its children, unless it is killed
    if os.getppid() != server:  # it was killed before that
        os._exit(1)
    for path, descriptor in ((job.stdout, 1), (job.stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.argv = [job.program, *job.arguments]
    code = 0
    try:
        if job.program.endswith(".py"):
            sys.path.insert(0, str(Path(job.program).resolve().parent))
            runpy.run_path(job.program, run_name="__main__")
        else:
            sys.path.insert(0, job.folder)
            runpy.run_module(job.program, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if not isinstance(ending.code, int | None):
            raise
        code = ending.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does first when it ends: join threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _preload(names: Sequence[str]) -> str:
    """Import modules; returns what is wrong."""
    problem = ""
    gc.disable()  # of what imports make almost all stays: looking through it again and again is a fifth of their time
    try:
        for name in names:
            importlib.import_module(name)
    except ImportError as error:
        problem = f"cannot import {name}: {error}"
    threads = threading.active_count()
    if Path("/proc/self/task").is_dir():
        threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        problem = f"{threads} threads run after the imports, expected one: their locks would be copied, not they"
    gc.freeze()  # children do not copy pages only to collect garbage
    gc.enable()
    return problem


def _server_of_each(listener: socket.socket) -> Connection[Any, Any] | None:
    """Fork a server for every client that connects; returns the link to a client in its server, None in an orphan."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how servers ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    listener.settimeout(_ORPHAN_SECONDS)
    while True:
        try:
            connected, _ = listener.accept()
        except TimeoutError:
            if os.getppid() != parent:
                return None
            continue
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return Connection(connected.detach())
        connected.close()


def main() -> None:
    """Import modules, then serve: `python -m areal.testing.fork_server [--origin] DESCRIPTOR MODULE ...`."""
    words = sys.argv[1:]
    is_origin = words[0] == "--origin"
    descriptor, *names = words[is_origin:]
    os.set_inheritable(int(descriptor), False)
    problem = _preload(names)
    link = _server_of_each(socket.socket(fileno=int(descriptor))) if is_origin else Connection(int(descriptor))
    if link is None:
        return
    link.send(problem)
    server = os.getpid()
    if not problem and (job := _serve(link)):
        _run(job, server)


if __name__ == "__main__":
    main()
