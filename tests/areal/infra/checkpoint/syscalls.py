"""Runs a function in a fork, and at one of its system calls that change files kills it or makes the call fail.

    outcome = run_at(save, call=7)                        # SIGKILL before the 7th such call is executed
    outcome = run_at(save, call=7, error=errno.ENOSPC)    # the 7th call is not executed and returns ENOSPC

It uses ptrace(2) on Linux x86-64, nothing else: no library is preloaded and nothing of the traced program is replaced.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TRACEME, _PEEKUSER, _POKEUSER, _SYSCALL, _SETOPTIONS = 0, 3, 6, 24, 0x4200
_EXITKILL, _SYSGOOD = 0x00100000, 0x00000001
_RAX, _RDI, _RSI, _RDX, _ORIG_RAX = 8 * 10, 8 * 14, 8 * 13, 8 * 12, 8 * 15  # offsets in struct user of x86-64
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGING = {
    1: "write", 18: "pwrite64", 20: "writev", 40: "sendfile", 74: "fsync", 75: "fdatasync", 76: "truncate",
    77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 258: "mkdirat", 263: "unlinkat",
    264: "renameat", 285: "fallocate", 316: "renameat2", 326: "copy_file_range",
}  # fmt: skip
"""System calls that change files, by number; openat counts too when it may create or write."""
OPENAT = 257


@dataclass(frozen=True)
class Outcome:
    """How the fork ended."""

    killed: bool
    exit_code: int | None
    calls: tuple[str, ...]
    """Names of the calls that touched files, up to the end or to the one that was hit."""


def supported() -> str:
    """Why tracing does not work here; empty when it does."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the tracer knows the registers of Linux on x86-64 only"
    try:
        outcome = run_at(lambda: os.mkdir("/proc/refused"), call=1)
    except OSError as error:
        return f"ptrace is not permitted here: {error}"
    return "" if outcome.killed else "ptrace does not stop at system calls here"


def run_at(work: Callable[[], None], *, call: int, error: int = 0) -> Outcome:
    """Run `work` in a fork. At its `call`-th file-changing system call (from 1): SIGKILL, or make it fail with `error`.

    An exception in `work` ends the fork with exit code 1 after its message went to stderr; a call number beyond the
    last lets it run to its end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    child = os.fork()
    if child == 0:
        _become_tracee(libc, work)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        raise OSError(os.WEXITSTATUS(status), "the fork could not be traced")
    _ptrace(libc, _SETOPTIONS, child, 0, _EXITKILL | _SYSGOOD)
    return _Tracer(libc, child, call, error).run()


def _become_tracee(libc: ctypes.CDLL, work: Callable[[], None]) -> None:
    code = 1
    try:
        if libc.ptrace(_TRACEME, 0, None, None) != 0:
            os._exit(ctypes.get_errno() or 1)
        os.kill(os.getpid(), signal.SIGSTOP)  # wait for the tracer
        work()
        code = 0
    except BaseException as failure:  # noqa: BLE001 - a fork must never return into the test
        sys.stderr.write(f"{type(failure).__name__}: {failure}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


class _Tracer:
    """Follows one fork from system call to system call."""

    def __init__(self, libc: ctypes.CDLL, child: int, call: int, error: int) -> None:
        self._libc, self._child, self._call, self._error = libc, child, call, error
        self._names: list[str] = []
        self._hit = False
        """Whether the fork has been killed: it takes no further request."""

    def run(self) -> Outcome:
        entering = True
        deliver = 0
        while True:
            if not self._hit:
                _ptrace(self._libc, _SYSCALL, self._child, 0, deliver)
            _, status = os.waitpid(self._child, 0)
            if os.WIFSIGNALED(status):
                return Outcome(killed=True, exit_code=None, calls=tuple(self._names))
            if os.WIFEXITED(status):
                return Outcome(killed=False, exit_code=os.WEXITSTATUS(status), calls=tuple(self._names))
            stopped_by = os.WSTOPSIG(status)
            deliver = 0
            if stopped_by != signal.SIGTRAP | 0x80:
                deliver = stopped_by  # a signal of its own
                continue
            if entering:
                self._enter()
            entering = not entering

    def _enter(self) -> None:
        """At the entry of a system call; when it is the chosen one, end it and everything that follows from it."""
        name = self._changing_call()
        if name is None:
            return
        self._names.append(name)
        if len(self._names) != self._call:
            return
        if not self._error:
            os.kill(self._child, signal.SIGKILL)
            self._hit = True
            return
        self._poke(_ORIG_RAX, -1)  # no such call: the kernel does nothing
        _ptrace(self._libc, _SYSCALL, self._child, 0, 0)
        os.waitpid(self._child, 0)
        self._poke(_RAX, -self._error)
        # The exit of this call has been seen here; go on to the entry of the next one.
        self._skip_exit()

    def _skip_exit(self) -> None:
        _ptrace(self._libc, _SYSCALL, self._child, 0, 0)
        os.waitpid(self._child, 0)
        self._enter()

    def _changing_call(self) -> str | None:
        number = self._peek(_ORIG_RAX)
        if number == OPENAT:
            return "openat" if self._peek(_RDX) & _WRITING_FLAGS else None
        name = CHANGING.get(number)
        # What goes to stderr or stdout is no file of ours.
        return None if name == "write" and self._peek(_RDI) <= 2 else name

    def _peek(self, offset: int) -> int:
        ctypes.set_errno(0)
        value = self._libc.ptrace(_PEEKUSER, self._child, offset, None)
        if value == -1 and ctypes.get_errno():
            raise OSError(ctypes.get_errno(), "ptrace could not read a register")
        return int(value)

    def _poke(self, offset: int, value: int) -> None:
        _ptrace(self._libc, _POKEUSER, self._child, offset, value)


def _ptrace(libc: ctypes.CDLL, request: int, child: int, address: int, data: int) -> None:
    if libc.ptrace(request, child, address, ctypes.c_void_p(data & (2**64 - 1))) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace request {request} failed")
