"""Runs a program under test once per case, confined; started by `areal.reward.programs`. Standard library only.

    supervisor    runs nothing untrusted; forks a keeper for every job it is sent, so Python starts once per sample
    keeper        enters namespaces, starts the program, reads what it writes, ends it and everything it left behind
    program       Python in a fork of this process; anything else through `execv`

A job is a frame of JSON and a frame of bytes for standard input; the answer is a frame of JSON and one of output. What
is expected of the program is never sent here, so nothing a program can reach has it.

    job      {"folder", "command" or "source", "function", "limits", "reach", "wall_seconds", "output_bytes",
              "start_programs", "memory_folder"}
    answer   {"verdict": "ended" | "time" | "output" | "lost", "status", "cpu_seconds", "wall_seconds", "errors",
              "isolation"}
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import types
from typing import TYPE_CHECKING, Any, Final

from areal.reward._sandbox import (
    FileReach,
    ProcessLimits,
    adopt_orphans,
    children,
    confine,
    end_with_parent,
    enter_namespaces,
    hide_memory,
    leave_root,
    mount_folder,
)
from areal.reward._seccomp import refuse_system_calls

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER: Final = struct.Struct("<I")
RESULT_DESCRIPTOR: Final = 3
"""Where a function's result is written, as JSON; a program without function has nothing there."""
_ERROR_BYTES: Final = 4096
_CHUNK: Final = 1 << 16
_TICK_SECONDS: Final = 0.02
"""How often the end of the program is looked for where the kernel cannot tell."""
_PROCESSES: Final = 64
_MAX_ROUNDS: Final = 1000
_PRELUDE: Final = (
    "import bisect, collections, datetime, fractions, functools, heapq, itertools, math, operator, random, re, string\n"
    "from typing import *\nfrom collections import *\nfrom functools import *\nfrom itertools import *\n"
    "from heapq import *\nfrom bisect import *\nfrom math import *\n"
)
"""Function-call exercises are written for sites that import these beforehand."""


def main() -> None:
    """`python -I -S -B -c ... SETTINGS`: serve jobs until the parent closes its end of the socket."""
    settings = json.loads(sys.argv[1])
    channel = socket.socket(fileno=settings["channel"])
    user = ("not root",) if leave_root(settings["folder"]) or os.geteuid() != 0 else ()
    for name in _PRELUDE.partition("\n")[0].removeprefix("import ").split(", "):
        __import__(name)  # once, and not again in every fork
    while (job := receive(channel)) is not None and (stdin := receive(channel)) is not None:
        keep = functools.partial(_keep, channel, json.loads(job), stdin, user)
        if _fork(keep):
            send(channel, b'{"verdict": "lost"}')
            send(channel, b"")
    os._exit(0)


def send(channel: socket.socket, body: bytes) -> None:
    """Write one frame: length, then content."""
    channel.sendall(HEADER.pack(len(body)) + body)


def receive(channel: socket.socket) -> bytes | None:
    """Read one frame; None when the other end is closed."""
    parts: list[bytes] = []
    missing = HEADER.size
    for stage in ("header", "body"):
        while missing:
            part = channel.recv(min(missing, 1 << 20))
            if not part:
                return None
            parts.append(part)
            missing -= len(part)
        if stage == "header":
            missing = HEADER.unpack(b"".join(parts))[0]
            parts.clear()
    return b"".join(parts)


def _fork(body: Callable[[], None]) -> int:
    """Run `body` in a child and return its exit status, 0 only when it returned."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1]


# ------------------------------------------------------------------------------------------------------ the keeper


def _keep(channel: socket.socket, job: dict[str, Any], stdin: bytes, user: tuple[str, ...]) -> None:
    end_with_parent()
    adopt_orphans()
    active = [*user, *enter_namespaces(processes=True, mounts=True)]
    os.makedirs(job["folder"], exist_ok=True)
    if job["memory_folder"] and "user namespace" in active and mount_folder(job["folder"], *job["memory_folder"]):
        active.append("folder in memory")
    os.chdir(job["folder"])
    # The first process of a namespace ignores most signals and takes all others with it, so the program is the second.
    first = _start_first() if "process namespace" in active else None
    source = _file_of(stdin)
    pipes = {name: os.pipe() for name in ("output", "errors", "result", "report")}
    started = time.monotonic()
    program = os.fork()
    if program == 0:
        try:
            _become(job, source, {name: write for name, (_, write) in pipes.items()}, in_own="user namespace" in active)
        finally:
            os._exit(127)
    for _, write in pipes.values():
        os.close(write)
    os.close(source)
    hide_memory()
    ends = {name: read for name, (read, _) in pipes.items()}
    verdict, taken, status, usage = _watch(channel, job, program, ends, started)
    wall_seconds = time.monotonic() - started
    if first is not None:
        os.kill(first, signal.SIGKILL)
    _end_children()
    _drain(taken, ends, job["output_bytes"])
    report = bytes(taken["report"]).decode()
    if status is None or not report.endswith("]"):
        # It never came as far as the program, or its end could not be seen: nobody's score.
        answer: dict[str, Any] = {"verdict": "lost", "errors": report or "the process was lost"}
    else:
        if verdict == "ended" and len(taken["output"]) + len(taken["result"]) > job["output_bytes"]:
            verdict = "output"
        code = os.waitstatus_to_exitcode(status)
        cpu_seconds = usage.ru_utime + usage.ru_stime
        if verdict == "ended" and (code == -signal.SIGXCPU or cpu_seconds > job["limits"]["cpu_seconds"] + 0.5):
            verdict = "time"
        answer = {
            "verdict": verdict,
            "status": code,
            "cpu_seconds": cpu_seconds,
            "wall_seconds": wall_seconds,
            "errors": bytes(taken["errors"]).decode(errors="replace"),
            "isolation": [*active, *json.loads(report)],
        }
    send(channel, json.dumps(answer).encode())
    send(channel, bytes(taken["result" if job["function"] else "output"][: job["output_bytes"]]))


def _start_first() -> int:
    """Start the first process of the namespace, which does nothing but take in orphans."""
    process = os.fork()
    if process == 0:
        try:
            end_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            os.closerange(0, 4096)
            while True:
                signal.pause()
        finally:
            os._exit(0)
    return process


def _file_of(content: bytes) -> int:
    """Return a descriptor of a file with `content` that has no name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin", 0)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _watch(
    channel: socket.socket, job: dict[str, Any], program: int, ends: dict[str, int], started: float
) -> tuple[str, dict[str, bytearray], int | None, Any]:
    """Read until the program ends or has used its time or output up; return verdict, what was read, status and usage.

    The program has been killed and reaped afterwards.
    """
    taken = {name: bytearray() for name in ends}
    deadline, verdict = started + job["wall_seconds"], "ended"
    status, usage = None, None
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ, "channel")
        for name, descriptor in ends.items():
            selector.register(descriptor, selectors.EVENT_READ, name)
        ending = os.pidfd_open(program) if hasattr(os, "pidfd_open") else None
        if ending is not None:
            selector.register(ending, selectors.EVENT_READ, "ending")
        while status is None and verdict == "ended":
            left = deadline - time.monotonic()
            if left <= 0:
                verdict = "time"
                break
            for key, _ in selector.select(left if ending is not None else min(left, _TICK_SECONDS)):
                if key.data == "channel":
                    verdict = "abandoned"  # the parent is gone, or has given this job up
                elif key.data != "ending" and not _take(taken[key.data], key.fd, _room(key.data, job)):
                    selector.unregister(key.fd)
            if len(taken["output"]) > job["output_bytes"] or len(taken["result"]) > job["output_bytes"]:
                verdict = "output"
            if ending is None or verdict == "ended":
                ended, code, use = os.wait4(program, os.WNOHANG)
                status, usage = (code, use) if ended else (None, None)
        if ending is not None:
            os.close(ending)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)
        _, status, usage = os.wait4(program, 0)
    if verdict == "abandoned":
        _end_children()
        os._exit(1)
    return verdict, taken, status, usage


def _room(name: str, job: dict[str, Any]) -> int:
    return _ERROR_BYTES if name in {"errors", "report"} else int(job["output_bytes"]) + 1


def _take(into: bytearray, descriptor: int, room: int) -> bool:
    """Read once and keep what there is room for; False at the end."""
    chunk = os.read(descriptor, _CHUNK)
    into += chunk[: max(0, room - len(into))]
    return bool(chunk)


def _drain(taken: dict[str, bytearray], ends: dict[str, int], output_bytes: int) -> None:
    """Take in what is still in the pipes; all writers are gone."""
    for name, descriptor in ends.items():
        os.set_blocking(descriptor, False)
        room = _ERROR_BYTES if name in {"errors", "report"} else output_bytes + 1
        with contextlib.suppress(BlockingIOError):
            while _take(taken[name], descriptor, room):
                pass


def _end_children() -> None:
    """Kill what is left below this process until there is nothing; orphans come to us."""
    for _ in range(_MAX_ROUNDS):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.001)


# ----------------------------------------------------------------------------------------------------- the program


def _become(job: dict[str, Any], source: int, pipes: dict[str, int], *, in_own: bool) -> None:
    """Turn this process into the program; never returns to the keeper's code."""
    os.setsid()
    end_with_parent()
    report = os.fdopen(os.dup2(pipes["report"], 100, inheritable=False), "w")
    wanted = {0: source, 1: pipes["output"], 2: pipes["errors"]}
    if job["function"]:
        wanted[RESULT_DESCRIPTOR] = pipes["result"]
    copies = {number: os.dup2(descriptor, 110 + number) for number, descriptor in wanted.items()}
    for number, descriptor in copies.items():
        os.dup2(descriptor, number)
    os.closerange(len(wanted), 100)
    os.closerange(101, 4096)
    try:
        # Outside a user namespace of its own, the limit would count what else this user runs on the machine.
        limits = ProcessLimits(**job["limits"], processes=_PROCESSES if in_own else None)
        active = list(confine(limits, FileReach(*map(tuple, job["reach"]))))
        if not job["start_programs"] and refuse_system_calls(start_programs=job["command"] is not None):
            active.append("system call filter")
        report.write(json.dumps(active))
        report.flush()
        environment = {"HOME": ".", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "TMPDIR": "."}
        environment |= {"OPENSSL_CONF": os.devnull}  # Node.js refuses to start when it may not read its own
        if job["command"] is not None:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)  # Python ignores these, and the new program would inherit it
            os.execve(job["command"][0], job["command"], environment)
    except OSError as error:
        report.write(f"the program could not be started: {error}")
        report.flush()
        os._exit(126)
    report.close()
    hide_memory(hidden="system call filter" not in active)  # /dev/stdin is one of the files that would be hidden, too
    os.environ.clear()
    os.environ.update(environment)
    _run_python(job["source"], job["function"])


def _run_python(source: str, function: str | None) -> None:
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    # Bytes that are no text travel through as they came.
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.argv = ["main.py"]
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status = 0
    try:
        if function:
            exec(_PRELUDE, module.__dict__)
        exec(compile(source, "main.py", "exec"), module.__dict__)  # running it is the purpose; it is confined
        if function:
            _call(module, function)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - whatever ends the program is shown as Python would
        traceback.print_exc(limit=-4)
        status = 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for its threads, as the interpreter does at its end
        atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(status & 0xFF)


def _call(module: types.ModuleType, function: str) -> None:
    """Call `function`, or that method of a class `Solution`, with the arguments on standard input."""
    owner = getattr(module, "Solution", None)
    found = getattr(owner(), function, None) if isinstance(owner, type) else None
    found = getattr(module, function, None) if found is None else found
    if found is None:
        raise NameError(f"the program defines no function {function!r}")
    with open(0, "rb", closefd=False) as file:
        arguments = json.loads(file.read())
    body = json.dumps(found(*arguments)).encode()
    while body:
        body = body[os.write(RESULT_DESCRIPTOR, body) :]
