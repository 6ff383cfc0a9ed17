"""The few ways in which the transaction changes a disk, each announced before it happens.

    disk = Disk(observe=print)
    disk.create(path, b"...", like=path_before.stat())   # new file, on the medium when this returns
    disk.replace(temporary, path)                        # atomic

Every mutation of `tooling.kit.change.transaction` goes through here, one observed step per system call that changes
something, so that a test can kill the process before each of them. It decides nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Observe = Callable[[str], None]


def ignore(step: str) -> None:
    """Observe nothing: what everyday runs do."""


class Disk:
    """Changes files below a repository and its git folder. All methods raise OSError as the system does."""

    def __init__(self, observe: Observe = ignore) -> None:
        self._observe = observe

    def create(self, path: Path, content: bytes, *, like: os.stat_result | None = None) -> None:
        """Write a new file and wait until it is on the medium. It gets the mode and, where permitted, the owner of
        `like`; otherwise 0644 less the umask. Raises FileExistsError when it exists, links included."""
        self._observe(f"create {path}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(path, flags, 0o644)
        try:
            self._observe(f"write {path}")
            view = memoryview(content)
            while view:
                view = view[os.write(handle, view) :]
            if like is not None:
                self._observe(f"attributes {path}")
                _imitate(handle, like)
            os.fsync(handle)
        except OSError as error:
            error.filename = os.fspath(path)  # write and fsync know a number only
            raise
        finally:
            os.close(handle)

    def replace(self, source: Path, target: Path) -> None:
        """Move a file over another one, atomically."""
        self._observe(f"replace {target}")
        os.replace(source, target)

    def remove(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file or link."""
        if missing_ok and not os.path.lexists(path):
            return
        self._observe(f"remove {path}")
        path.unlink(missing_ok=missing_ok)

    def make_folder(self, path: Path, *, mode: int | None = None) -> None:
        """Make one folder unless it is there, with exactly `mode` if given."""
        if not path.is_dir():
            self._observe(f"folder {path}")
            path.mkdir(exist_ok=True)
        if mode is not None and stat.S_IMODE(path.stat().st_mode) != mode:
            self._observe(f"attributes {path}")
            path.chmod(mode)

    def remove_folder(self, path: Path) -> bool:
        """Remove a folder if it is there and empty; whether it is gone now."""
        try:
            if next(path.iterdir(), None) is not None:
                return False
            self._observe(f"remove folder {path}")
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                return False
            raise
        return True

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the medium; one that is gone has none."""
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _imitate(handle: int, like: os.stat_result) -> None:
    own = os.fstat(handle)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        # Only root may give a file away; another user's shared file becomes ours, as with any editor that renames.
        with suppress(PermissionError):
            os.fchown(handle, like.st_uid, like.st_gid)
    os.fchmod(handle, stat.S_IMODE(like.st_mode))
