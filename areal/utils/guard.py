"""Runs one command so that nothing of it outlives its owner: a program of its own, standard library only.

    python guard.py LIFELINE GRACE_SECONDS [FOLDER] -- COMMAND [ARGUMENT ...]

LIFELINE is an inherited file descriptor whose other end the owner keeps open. When the owner goes away, however it
dies, the kernel closes that end: the guard then ends the command (SIGTERM, after GRACE_SECONDS SIGKILL). SIGTERM to the
guard does the same, SIGUSR1 without grace. When the command ends, every process it left behind is killed, those that
moved to another session included (on Linux the guard adopts them). FOLDER is removed when the owner has gone away: an
owner that lives does that itself. The guard exits with the command's status, 128 + signal number if it was killed.

It does not restart anything: that is `areal.infra.supervisor`.

A program that is itself written here need not be a command of its own: `fork_guarded` splits its process into a guard
and a worker. Scripts that start as fast as a bare interpreter, and maybe in one without this package, load it by its
path: `runpy.run_path(".../areal/utils/guard.py")["fork_guarded"](serve, channel)`.
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
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_POLL_SECONDS = 0.5
_REST_SECONDS = 2.0
_HUNT_SECONDS = 2.0


def guarded(command: Sequence[str], *, lifeline: int, grace_seconds: float, folder: str = "") -> list[str]:
    """Return the command that runs `command` under a guard. lifeline: the descriptor that the guard inherits. folder:
    what the owner would leave behind if it was killed."""
    settings = [str(lifeline), str(grace_seconds), *filter(None, [folder])]
    return [sys.executable, "-I", "-S", __file__, *settings, "--", *command]


def main(arguments: list[str]) -> int:
    lifeline, grace = int(arguments[0]), float(arguments[1])
    settings = arguments[: arguments.index("--")]
    command = arguments[len(settings) + 1 :]
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
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509 - one thread only
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
    if _is_closed(lifeline, wait=False):  # the owner may have died after it asked, or as the command ended
        for folder in settings[2:]:
            remove_tree(folder)
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
        for pid in [pid for pid, (parent, _) in _processes().items() if parent == os.getpid()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if gently else signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG if gently else 0)
        except ChildProcessError:
            return
        if gently and not ended:
            time.sleep(0.05)


def exit_text(status: int | None) -> str:
    """Return how a process ended, in words, from its return code; None while it has not."""
    if status is None:
        return "still ending"
    if status >= 0:
        return f"exit status {status}"
    # Those between SIGRTMIN and SIGRTMAX have no names.
    return f"signal {signal.Signals(-status).name if -status in {*signal.Signals} else -status}"


def fork_guarded(
    serve: Callable[[], None],
    channel: int,
    *,
    parent: int | None = None,
    folder: str = "",
    outlives_sigterm: bool = False,
) -> NoReturn:
    """Run `serve` in a new process, and guard it here: this process runs none of its code and can therefore always act.

    Called by the leader of a session of its own. When the other end of `channel` closes, it kills its group and all
    that runs below it, also what moved to another session (on Linux, where it adopts them). parent: process id of who
    started it; given that, SIGTERM and the end of that process do the same. folder: removed when the channel closes:
    who made it may have died. outlives_sigterm: SIGTERM does so only once the parent is gone; for work that the parent
    still needs when all processes of a job are asked to end. When `serve` ends, what it left behind is killed, and this
    process ends the way it did.
    """

    def at_sigterm(*_: object) -> None:
        if not outlives_sigterm or os.getppid() != parent:
            _kill_group()

    _prctl(_SET_CHILD_SUBREAPER, 1)
    worker = os.fork()
    if worker == 0:
        serve()
        os._exit(0)
    if parent is not None:
        # Beside the channel, whose end some fork of the parent may hold open; only Linux sends this signal.
        signal.signal(signal.SIGTERM, at_sigterm)
        _prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            _kill_group()
    import threading

    hangup = threading.Thread(target=_kill_at_hangup, args=(channel, folder), daemon=True)
    hangup.start()
    pid, ending = os.waitpid(-1, 0)
    while pid != worker:  # an adopted process has ended
        pid, ending = os.waitpid(-1, 0)
    status = os.waitstatus_to_exitcode(ending)
    if _is_closed(channel, wait=False):
        hangup.join()  # it ends this process, when all is gone
    _kill_descendants()
    if status >= 0:
        os._exit(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump, the worker's own, is enough
    if -status not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    os._exit(128 - status)  # a signal that is blocked here


def _kill_at_hangup(channel: int, folder: str) -> None:
    while not _is_closed(channel, wait=True):
        pass
    _kill_descendants()
    try:
        if folder:
            remove_tree(folder)
    finally:
        _kill_group()


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder, with those in it that their owner locked. What cannot be removed stays.

    Folders inside move up to the first level before they are emptied: however deep a program has nested them, nothing
    recurses, no path is longer than the system takes, and two folders are open at a time. Example: of folder/b/c/d, `c`
    moves to folder/x, so that `b` can go, and then `d` to folder/y.
    """
    with contextlib.suppress(OSError):
        root = _opened(os.fspath(folder), None)
        try:
            waiting = _emptied(root, root)
            for name in waiting:
                with contextlib.suppress(OSError):
                    inner = _opened(name, root)
                    try:
                        waiting += _emptied(inner, root)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=root)
        finally:
            os.close(root)
        os.rmdir(folder)


def _emptied(folder: int, root: int) -> list[str]:
    """Remove the files of a folder and move its folders to `root`; returns their names there."""
    found = []
    with os.scandir(folder) as entries:
        listed = list(entries)
    for entry in listed:
        with contextlib.suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                continue
            name = entry.name
            if folder != root:
                os.chmod(name, 0o700, dir_fd=folder)  # one that is locked cannot be moved
                name = os.urandom(12).hex()
                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=root)
            found.append(name)
    return found


def _opened(folder: str, parent: int | None) -> int:
    """Return a descriptor of a folder, unlocked, and of no link. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        found = os.open(folder, flags, dir_fd=parent)
    except PermissionError:
        os.chmod(folder, 0o700, dir_fd=parent)
        return os.open(folder, flags, dir_fd=parent)
    with contextlib.suppress(OSError):
        os.fchmod(found, 0o700)
    return found


def _is_closed(channel: int, *, wait: bool) -> bool:
    """Return whether the other end of a channel is closed. wait: until something happens to it."""
    poll = select.poll()
    poll.register(channel, 0)
    return any(
        event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(None if wait else 0)
    )


def _kill_group() -> None:
    _kill_descendants()
    os.killpg(0, signal.SIGKILL)


def _kill_descendants() -> None:
    """Kill until none is left: those of a killed one become ours. Bounded, since a fork bomb may be faster."""
    deadline = time.monotonic() + _HUNT_SECONDS
    while (found := _descendants()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """Return living processes below this one; none where there is no /proc."""
    parents = {pid: parent for pid, (parent, state) in _processes().items() if state != "Z"}
    found, own = [], {os.getpid()}
    while level := [pid for pid, parent in parents.items() if parent in own]:
        found += level
        own = set(level)
    return found


def _processes() -> dict[int, tuple[int, str]]:
    """Return parent and state of every process; empty without /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        # "pid (name) state parent ...": the name may hold blanks and parentheses.
        with contextlib.suppress(OSError, ValueError):  # it has ended
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            found[int(entry.parent.name)] = (int(parent), state)
    return found


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends, however it does (on Linux)."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
