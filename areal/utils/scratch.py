"""Temporary folders of processes that may be killed: what a dead owner left, the next one to start removes.

    folder = make_scratch("areal-agent-")    # /tmp/areal-agent-node7-4711-k3v0x_2a, empty, ours until we die
    remove_scratch(folder)

    with scratch_folder("areal-kernel-") as folder:
        ...

Guards remove the folder of an owner that is killed (`areal.utils.guard`); nobody does when the guard is killed as well.
The owner therefore locks its folder, and the kernel drops the lock when that process ends, however it does: a folder of
such a name that can be locked has no owner any more. Whoever makes one first looks for those, once per process. Names
have the host: machines may share the file system and not its locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.utils.guard import remove_tree
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterator

_logger = getLogger(__name__)
_locks: Final[dict[Path, int]] = {}
"""Folders of this process to the descriptors that lock them."""


def make_scratch(prefix: str) -> Path:
    """Return a new empty folder among the temporary files, for nobody else to read."""
    base = Path(tempfile.gettempdir())
    _clear_once(prefix, base)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{host_part()}-{os.getpid()}-", dir=base))
        try:
            descriptor = _locked(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another start took it for a leftover before it was locked
        except OSError:  # a file system without locks: nobody can tell whether it is left behind, so it will stay
            return folder
        if folder.exists():
            _locks[folder] = descriptor
            return folder
        os.close(descriptor)


def remove_scratch(folder: Path) -> None:
    """Remove a folder with all that is in it, also folders that their owner locked. Idempotent."""
    try:
        remove_tree(folder)
    finally:
        descriptor = _locks.pop(folder, None)
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a folder, and remove it at the end of the block."""
    folder = make_scratch(prefix)
    try:
        yield folder
    finally:
        remove_scratch(folder)


def remove_unowned(prefix: str, base: Path) -> list[Path]:
    """Remove what dead processes of this user and machine left in `base`; return what was removed.

    Folders that somebody may still use stay: those that are locked, of other users or machines, or not named as
    `make_scratch` does. Raises nothing: whoever makes a folder has nothing to do with what others left.
    """
    removed = []
    named = re.compile(re.escape(f"{prefix}{host_part()}") + r"-\d+-\w+")
    for entry in sorted(base.glob(f"{prefix}{host_part()}-[0-9]*")):
        if not named.fullmatch(entry.name):
            continue
        try:
            descriptor = _locked(entry)
        except OSError:  # in use, another's, gone, no folder, or where there are no locks
            continue
        try:
            remove_tree(entry)
            removed.append(entry)
        except Exception as error:  # noqa: BLE001 - what programs leave may be anything
            _logger.warning("%s, which a dead process left, cannot be removed: %r", entry, error)
        finally:
            os.close(descriptor)
    return removed


def host_part() -> str:
    """Return what names of this machine's folders have after their prefix: letters, digits and "_"."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())


@functools.cache
def _clear_once(prefix: str, base: Path) -> None:
    remove_unowned(prefix, base)


def _locked(folder: Path) -> int:
    """Return a descriptor that locks a folder of this user. Raises BlockingIOError when a process has locked it, other
    kinds of OSError where it is another's, gone or no folder, and where there are no locks."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        descriptor = os.open(folder, flags)
    except PermissionError:
        found = folder.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            raise
        folder.chmod(0o700)  # what ran in it has locked it
        descriptor = os.open(folder, flags)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(f"{folder} is another's")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
