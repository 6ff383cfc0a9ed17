"""The three processes in which a program is tested; started by `areal.reward.execution`. Standard library only.

    guard     runs nothing untrusted; ends the other two on request, or when its parent is gone
    tests     has the tests and the only way to report a verdict
    program   has the program, and one socket to the tests; reached as described in `areal.reward._remote`

The verdict is two lines of JSON: {"isolation": [...]} when the program's process is confined and about to run it, then
{"outcome", "detail", "passed", "ended"}. Nothing the program does can write there: it never has the descriptor, and
ending early only ends its answers.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import signal
import socket
import sys
import time
import types
from typing import TYPE_CHECKING, Any, Final

from areal.reward._remote import OPERATIONS, RAISED_REMOTELY, Peer, PeerGoneError
from areal.reward._sandbox import (
    ProcessLimits,
    adopt_orphans,
    children,
    confine,
    end_with_parent,
    enter_namespaces,
    hide_memory,
    leave_root,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE: Final = "solution"
_MAX_ROUNDS: Final = 1000
"""Each kills a generation of processes that start others."""
_REAP_SECONDS: Final = 0.2
"""How long a process that closed its socket may take to be gone, before it is killed."""


def main() -> None:
    """`python -I -S -c ... SETTINGS`: descriptors, folder and limits as JSON."""
    settings = json.loads(sys.argv[1])
    limits = ProcessLimits(**settings["limits"])
    folder = settings["folder"]
    for_tests, for_program = socket.socketpair()
    user = ("not root",) if leave_root(folder) or os.geteuid() != 0 else ()
    tests = _fork(
        lambda: _run_tests(for_tests, settings, limits),
        keep={for_tests.fileno(), settings["tests"], settings["verdict"]},
    )
    # From here on our children are in the namespace; the tests' process is not, so the program cannot see it.
    namespaces = enter_namespaces(processes=True)
    program = _fork(
        lambda: _run_program(for_program, settings, limits, (*user, *namespaces)),
        keep={for_program.fileno(), settings["program"]},
    )
    _close_all_but({settings["control"], settings["status"]})
    hide_memory()
    adopt_orphans()
    # Wait for word from the parent (a byte, or its end), then end both processes and report how the program ended.
    word = b""
    try:
        os.write(settings["status"], f"{program}\n".encode())
        word = os.read(settings["control"], 1)
    finally:  # also when the parent is gone
        os.kill(tests, signal.SIGKILL)
        deadline = time.monotonic() + (_REAP_SECONDS if word else 0.0)
        ended, status = os.waitpid(program, os.WNOHANG)
        while not ended and time.monotonic() < deadline:
            time.sleep(0.002)
            ended, status = os.waitpid(program, os.WNOHANG)
        ending = str(os.waitstatus_to_exitcode(status)) if ended else "killed"
        if not ended:
            os.kill(program, signal.SIGKILL)
            os.waitpid(program, 0)
        _end_orphans()
    os.write(settings["status"], f"{ending}\n".encode())
    os._exit(0)


def _fork(body: Callable[[], None], keep: set[int]) -> int:
    process = os.fork()
    if process == 0:
        status = 1
        try:
            _close_all_but(keep)
            body()
            status = 0
        finally:
            os._exit(status)
    return process


def _close_all_but(keep: set[int]) -> None:
    previous = 2
    for descriptor in sorted(keep):
        os.closerange(previous + 1, descriptor)
        previous = descriptor
    os.closerange(previous + 1, 4096)


def _end_orphans() -> None:
    """Kill what is still running of what the program started; where it had no process namespace, that came to us."""
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


# --------------------------------------------------------------------------------------------------- the program


def _run_program(
    channel: socket.socket, settings: dict[str, Any], limits: ProcessLimits, namespaces: tuple[str, ...]
) -> None:
    os.setsid()  # a signal to its own group must not reach the other two
    end_with_parent()
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    source = _read_all(settings["program"]).decode("utf-8", "surrogatepass")
    peer = Peer(channel, OPERATIONS)
    peer.send(["started", [*namespaces, *confine(limits)]])
    module = types.ModuleType(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses and pickle look a class's module up
    try:
        exec(compile(source, f"{_MODULE}.py", "exec"), module.__dict__)  # running it is the purpose; it is confined
    except BaseException as error:  # noqa: BLE001 - SystemExit included: it is how this program ended
        peer.send(["failed", f"{type(error).__name__}: {error}"])
        return
    peer.send(["ready", peer.export(vars(module))])
    peer.serve()


# ----------------------------------------------------------------------------------------------------- the tests


def _run_tests(channel: socket.socket, settings: dict[str, Any], limits: ProcessLimits) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sources = json.loads(_read_all(settings["tests"]))
    enter_namespaces(processes=False)
    end_with_parent()
    confine(limits)
    peer = Peer(channel, {"call"})
    _report(settings["verdict"], {"isolation": peer.receive()[1]})
    _report(settings["verdict"], _verdict(peer, sources))


def _report(verdict: int, message: dict[str, Any]) -> None:
    os.write(verdict, json.dumps(message).encode() + b"\n")


def _verdict(peer: Peer, sources: list[str]) -> dict[str, Any]:
    passed = 0
    try:
        state, detail = peer.receive()
        if state != "ready":
            return _outcome("failed", f"the program raised {detail}", passed)
        # What the tests see of the program: names that they use and it defines, never built-in ones.
        used = {node.id for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        wanted = sorted(name for name in used if not hasattr(builtins, name) and not name.startswith("__"))
        found = peer.ask("pick", detail, wanted)
        if not isinstance(found, dict):
            raise TypeError("the program's names are not a dict")
        defined = {name: found[name] for name in wanted if name in found}
        namespace = {"__name__": "tests", **defined}
        for source in sources:
            exec(compile(source, "tests.py", "exec"), namespace)  # the row's tests, confined like the program
            passed += 1
    except PeerGoneError:
        return _outcome("failed", "the program ended before its tests did", passed, ended=True)
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is its failure
        return _failure(error, sources, passed)
    if not defined:
        return _outcome("broken_tests", "the tests pass without using anything the program defines", passed)
    return _outcome("passed", "", passed)


def _failure(error: BaseException, sources: list[str], passed: int) -> dict[str, Any]:
    remote = RAISED_REMOTELY in getattr(error, "__notes__", ())
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError) and not remote:
        return _outcome("broken_tests", text, passed)
    if isinstance(error, AssertionError) and not remote:
        line, number, trace = "", 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "tests.py":
                number = trace.tb_lineno
            trace = trace.tb_next
        if passed < len(sources):
            lines = sources[passed].splitlines()
            line = lines[number - 1].strip() if 0 < number <= len(lines) else "an assertion"
        return _outcome("failed", f"{line}{f': {error}' if str(error) else ''}", passed)
    return _outcome("failed", f"the program raised {text}" if remote else text, passed)


def _outcome(outcome: str, detail: str, passed: int, *, ended: bool = False) -> dict[str, Any]:
    return {"outcome": outcome, "detail": detail[:2000], "passed": passed, "ended": ended}


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
