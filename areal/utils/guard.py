"""Runs one command so that nothing of it outlives its owner: a program of its own, standard library only.

    python guard.py LIFELINE GRACE_SECONDS -- COMMAND [ARGUMENT ...]

LIFELINE is an inherited file descriptor whose other end the owner keeps open. When the owner goes away, however it
dies, the kernel closes that end: the guard then ends the command (SIGTERM, after GRACE_SECONDS SIGKILL). SIGTERM to the
guard does the same, SIGUSR1 without grace. When the command ends, every process it left behind is killed, those that
moved to another session included (on Linux the guard adopts them). The guard exits with the command's status, 128 +
signal number if it was killed.

It does not restart anything: that is `areal.infra.supervisor`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_POLL_SECONDS = 0.5
_REST_SECONDS = 2.0


def guarded(command: Sequence[str], *, lifeline: int, grace_seconds: float) -> list[str]:
    """Return the command that runs `command` under a guard. lifeline: the descriptor that the guard inherits."""
    return [sys.executable, "-I", "-S", __file__, str(lifeline), str(grace_seconds), "--", *command]


def main(arguments: list[str]) -> int:
    lifeline, grace = int(arguments[0]), float(arguments[1])
    command = arguments[arguments.index("--") + 1 :]
    _prctl(_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the owner, which decides
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        # The guard has one thread, so that code may run between fork and exec.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard)  # noqa: PLW1509 - one thread only
    except OSError as error:
        sys.stderr.write(f"guard: cannot start {command[0]!r}: {error}\n")
        return 127
    watched = [lifeline, wake_read]
    while child.poll() is None and not asked:
        ready, _, _ = select.select(watched, [], [], _POLL_SECONDS)
        if lifeline in ready:
            asked.append(signal.SIGHUP)
        if wake_read in ready:
            os.read(wake_read, 4096)
    if child.poll() is None:
        _end(child, 0.0 if asked[0] == signal.SIGUSR1 else grace)
    _kill_rest()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    child.terminate()
    deadline = time.monotonic() + grace
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if child.poll() is None:
        child.kill()
        child.wait()


def _kill_rest() -> None:
    """End all remaining children. Children of an ended process are adopted, so repeat until none is left.

    First gently: helper processes that remove a server's shared memory do so after the others are gone.
    """
    deadline = time.monotonic() + _REST_SECONDS
    while True:
        gently = time.monotonic() < deadline
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if gently else signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG if gently else 0)
        except ChildProcessError:
            return
        if gently and not ended:
            time.sleep(0.05)


def _children() -> list[int]:
    """Return the ids of this process's children; empty without /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (name) state parent ...": the name may hold blanks and parentheses.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(entry.parent.name))
    return found


def _die_with_guard() -> None:
    """Make the kernel end the child with the guard, even if the guard is killed by SIGKILL."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
