"""Lets one process at a time change a work tree: an advisory lock that the kernel drops when its holder dies.

    with repository_lock(repository, wait_seconds=10): ...

The lock file stays where it is between runs (removing it would let two processes lock two different files). Its
content names the holder, for the message of whoever has to wait; the lock itself is flock(2), never that content.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tooling.cli.errors import LockedError, WriteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.cli.git import Repository

_PAUSE = 0.02
"""Seconds between two attempts."""
_HOLDER_BYTES = 4096
"""Most of a holder's description that is written or read."""


@contextmanager
def repository_lock(repository: Repository, *, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of a work tree. Raises LockedError, naming the holder, when it stays taken for `wait_seconds` (also
    when this very process holds it), WriteError when the lock file cannot be made."""
    handle = _open(repository)
    try:
        deadline = time.monotonic() + wait_seconds
        while not _try_lock(handle):
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"the repository is in use by {_holder(handle)}", fix="run again when it has ended, or use --wait"
                )
            time.sleep(_PAUSE)
        _describe_self(handle)
        try:
            yield
        finally:
            # Unlocking by name, not by closing: a forked child may still have the file open.
            os.ftruncate(handle, 0)
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _open(repository: Repository) -> int:
    path = repository.state / "lock"
    try:
        repository.state.mkdir(exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WriteError(
            f"the repository cannot be locked: {error.strerror}", where=os.fspath(path), fix="make it writable"
        ) from error


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise WriteError(f"the file system of the repository has no locks: {error.strerror}") from error
    return True


def _describe_self(handle: int) -> None:
    holder = {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(sys.argv)[:1000],
    }
    # A courtesy to whoever waits; a full disk must not keep anybody from recovering.
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode()[:_HOLDER_BYTES], 0)


def _holder(handle: int) -> str:
    """Return who holds the lock, as far as the file says; it is empty for a moment after each acquisition."""
    try:
        holder = json.loads(os.pread(handle, _HOLDER_BYTES, 0))
        return f"pid {holder['pid']} on {holder['host']} since {holder['since']}: {holder['command']!r}"
    except (ValueError, KeyError, TypeError):
        return "another process"
