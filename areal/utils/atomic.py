"""Publish files and folders all at once: a reader sees the old content or the new, never something in between.

The order is always: write under a temporary name in the same folder, flush to disk, rename, flush the folder. A
temporary entry is locked by the process that writes it (the kernel drops the lock when that process dies, however it
dies), so `remove_leftovers` can tell the remains of a killed writer from work in progress.

It is not a checkpoint format: no hashes, no history. See `areal.infra.checkpoint` for those.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY_MARK: Final = ".tmp-"
"""Part of every temporary name: ".<final name>.tmp-<random>"."""


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace the content of the file `path`; text is written as UTF-8. Missing parent folders are an error.

    Raises OSError (disk full, permission, ...); the previous content is then still there and nothing else is left
    behind.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = _temporary_beside(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _try_lock(descriptor)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        # Also on KeyboardInterrupt: whatever ends the write, the temporary file must not stay.
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    fsync_directory(path.parent)


@contextmanager
def atomic_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `path` when the block ends without an exception, else is removed.

    All files in it are flushed before the rename. replace: allow `path` to exist; it is moved aside first, so for the
    moment between two renames there is neither (a kill exactly there leaves the old one as `.<name>.old-*`).

    Raises FileExistsError when `path` exists and may not be replaced, OSError when the disk refuses.

        with atomic_directory(Path("model"), replace=True) as folder:
            (folder / "config.json").write_text("{}")
    """
    if path.exists() and not replace:
        raise FileExistsError(f"{path} exists already and will not be overwritten; remove it or choose another path")
    temporary, descriptor = _locked_folder(path)
    try:
        yield temporary
        fsync_tree(temporary)
        if replace and path.exists():
            _swap(temporary, path)
        else:
            os.rename(temporary, path)
    except BaseException:
        # Also on KeyboardInterrupt: a half-written folder is of no use to anyone.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    fsync_directory(path.parent)


def remove_leftovers(directory: Path, *, name: str | None = None) -> list[Path]:
    """Remove temporary files and folders in `directory` whose writer is gone; return what was removed.

    name: final name of the only file or folder whose leftovers go, for a directory that is shared with others; None
    for all. Entries that a live process (this one included) is still writing stay.
    """
    removed = []
    for entry in sorted(directory.glob(f".{'*' if name is None else glob.escape(name)}{TEMPORARY_MARK}*")):
        try:
            descriptor = os.open(entry, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            if not _try_lock(descriptor):
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
            removed.append(entry)
        finally:
            os.close(descriptor)
    return removed


def fsync_directory(path: Path) -> None:
    """Flush the entries of one folder, which makes a rename inside it survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: Path) -> None:
    """Flush every file and folder below `path`, and `path` itself."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in sorted(files):
            descriptor = os.open(Path(folder, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_directory(Path(folder))


def _temporary_beside(path: Path) -> Path:
    return path.parent / f".{path.name}{TEMPORARY_MARK}{secrets.token_hex(6)}"


def _locked_folder(path: Path) -> tuple[Path, int]:
    """Create a temporary folder that `remove_leftovers` in another process will not touch."""
    while True:
        temporary = _temporary_beside(path)
        temporary.mkdir()
        descriptor = os.open(temporary, os.O_RDONLY)
        # A cleaner may have taken the folder for a leftover between mkdir and lock; then start again under a new name.
        if _try_lock(descriptor) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _swap(temporary: Path, path: Path) -> None:
    """Put `temporary` in the place of the existing `path`; on failure the old one is back in place."""
    # Not a temporary name: after a kill between the renames this is the only copy, which no cleaner may take.
    aside = path.parent / f".{path.name}.old-{secrets.token_hex(6)}"
    os.rename(path, aside)
    try:
        os.rename(temporary, path)
    except OSError:
        os.rename(aside, path)
        raise
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
