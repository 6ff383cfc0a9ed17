"""Leases kept as files of a folder that all hosts see, for where nobody may listen on a port.

    FOLDER/KIND/NAME.json      {"lease": {...}, "proof": HMAC of the lease}

Every change is a rename under a lock of the folder (flock), so readers need no lock and see the old file or the new.
How old an entry is says the folder's own clock, that of the file server: the modification time of the entry's file
against that of a file just touched. Clocks of hosts do not matter. On network file systems changes may be seen seconds
late, so leases should not be shorter than 30 s there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from areal.api import EngineError, UsageError
from areal.infra.directory.lease import MAX_VALUE_BYTES, LeasedEntry, check_lease
from areal.utils.atomic import atomic_write
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_logger = getLogger(__name__)
_POLL_SECONDS: Final = 0.2
_LOCK_SECONDS: Final = 20.0
_FORGET_LEASES: Final = 10
"""Files of entries that ended are removed after so many leases: an owner that was away for a while is not disturbed."""


class FolderStore:
    """`LeaseStore` in a folder, which is made if it does not exist."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self._folder, self._key = folder, key
        self._clock = folder / f".clock-{secrets.token_hex(6)}"
        self._warned: set[Path] = set()
        with self._reachable():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._clock.touch(mode=0o600)

    def put(self, lease: LeasedEntry, *, new: bool, exclusive: bool) -> bool:
        """See `LeaseStore.put`."""
        path = self._path(lease)
        with self._reachable(), self._locked():
            path.parent.mkdir(exist_ok=True)
            before = self._live(path, self._now())
            if before is not None and before.owner != lease.owner and (exclusive or not new):
                return False
            if before == lease:
                os.utime(path)
            else:
                fields = asdict(lease)
                atomic_write(path, json.dumps({"lease": fields, "proof": self._proof(fields)}))
            if new:
                self._forget(path.parent)
        return True

    def drop(self, lease: LeasedEntry) -> None:
        """See `LeaseStore.drop`."""
        path = self._path(lease)
        with self._reachable(), self._locked():
            found = self._read(path)
            if found is not None and found[0].owner == lease.owner:
                path.unlink(missing_ok=True)

    def entries(self, kind: str) -> dict[str, dict[str, Any]]:
        """See `LeaseStore.entries`. Files that this job did not write are left out, with a warning."""
        found = {}
        with self._reachable():
            now = self._now()
            for path in sorted((self._folder / kind).glob("[!.]*.json")):
                lease = self._live(path, now)
                if lease is not None and lease.kind == kind and f"{lease.name}.json" == path.name:
                    found[lease.name] = dict(lease.value)
        return found

    def wait(self, kind: str, count: int, seconds: float) -> dict[str, dict[str, Any]]:
        """See `LeaseStore.wait`."""
        deadline = monotonic() + seconds
        while True:
            found = self.entries(kind)
            if len(found) >= count or (left := deadline - monotonic()) <= 0:
                return found
            sleep(min(_POLL_SECONDS, left))

    def close(self) -> None:
        """See `LeaseStore.close`."""
        with contextlib.suppress(OSError):
            self._clock.unlink(missing_ok=True)

    def _path(self, lease: LeasedEntry) -> Path:
        check_lease(lease)  # its kind and name are parts of a path
        return self._folder / lease.kind / f"{lease.name}.json"

    def _now(self) -> float:
        """Return the time of the file server, in seconds."""
        self._clock.touch(mode=0o600)
        return self._clock.stat().st_mtime

    def _live(self, path: Path, now: float) -> LeasedEntry | None:
        found = self._read(path)
        if found is None:
            return None
        lease, written = found
        return lease if now - written <= lease.seconds else None

    def _forget(self, folder: Path) -> None:
        """Remove files of entries that ended long ago. Needs the lock."""
        now = self._now()
        for path in folder.glob("[!.]*.json"):
            found = self._read(path)
            if found is not None and now - found[1] > _FORGET_LEASES * found[0].seconds:
                path.unlink(missing_ok=True)

    def _read(self, path: Path) -> tuple[LeasedEntry, float] | None:
        """Return an entry and the time of its last renewal; None without one that was written with the key."""
        try:
            # Opened and asked through the descriptor: network file systems then ask the server.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            data, written = os.read(descriptor, 4 * MAX_VALUE_BYTES), os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
        try:
            found = json.loads(data)
            if hmac.compare_digest(str(found["proof"]).encode(), self._proof(found["lease"]).encode()):
                return check_lease(LeasedEntry(**found["lease"])), written
        except (ValueError, TypeError, KeyError, UsageError):
            pass
        if path not in self._warned:
            self._warned.add(path)
            _logger.warning("%s was not written with this job's key and is ignored", path)
        return None

    def _proof(self, fields: object) -> str:
        text = json.dumps(fields, sort_keys=True)
        return hmac.new(self._key, f"directory entry {text}".encode(), hashlib.sha256).hexdigest()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() > deadline:
                        raise EngineError(
                            f"{self._folder} was locked for {_LOCK_SECONDS:g} s by another process"
                        ) from None
                    sleep(0.01)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EngineError(
                f"cannot use the folder {self._folder} as a directory: {error}; it must be writable and support flock"
            ) from error
