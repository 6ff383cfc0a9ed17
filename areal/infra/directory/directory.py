"""Announces entries and keeps them alive, lists those of others, and waits until enough are there."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from areal.api import ArealError, BusyError, ConfigError, EngineError
from areal.infra.directory.channel import MIN_KEY_BYTES
from areal.infra.directory.lease import LeasedEntry, check_lease, check_word
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from areal.infra.directory.lease import LeaseStore

_logger = getLogger(__name__)
_RENEWALS_PER_LEASE: Final = 3
_RETRIES_PER_LEASE: Final = 10


class Announcement:
    """An entry of this process, renewed in the background until it is withdrawn; made by `Directory.announce`."""

    def __init__(self, directory: Directory, lease: LeasedEntry) -> None:
        self._directory = directory
        self.lease = lease
        """What was last sent."""
        self.renewed = monotonic()
        self.due = 0.0
        """When it is renewed next, by the monotonic clock."""
        self.taken = False
        """Whether another announcement has taken the name over; this one is not renewed any more."""
        self.lock = threading.Lock()
        """Held while it is sent, so that an old value never follows a new one."""

    @property
    def stale_seconds(self) -> float:
        """Seconds since the directory last confirmed the entry. Above the lease: others take this process for gone."""
        return monotonic() - self.renewed

    @property
    def lost(self) -> str:
        """Why others no longer see this entry; empty while they do. It returns by itself unless the name was taken
        over."""
        if self.taken:
            return f"{self.lease.kind} {self.lease.name} was announced by another process"
        if self.stale_seconds > self.lease.seconds:
            return f"the directory has not answered for {self.stale_seconds:.0f} s"
        return ""

    def update(self, value: Mapping[str, Any]) -> None:
        """Replace the value, and renew. Raises EngineError when the name was taken over, or without a connection."""
        with self.lock:
            lease = check_lease(replace(self.lease, value=_plain(value)))
            if not self._directory.send(self, lease):
                raise EngineError(f"cannot update an entry: {self.lost}")

    def withdraw(self) -> None:
        """Remove the entry; without a connection it ends with its lease. Idempotent."""
        self._directory.withdraw(self)


class Directory:
    """A process's view of the directory; use `open_directory`. Thread-safe."""

    def __init__(self, store: LeaseStore, where: str) -> None:
        self._store = store
        self.where = where
        """URL."""
        self._mine: list[Announcement] = []
        self._wake = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._ending = False

    def announce(
        self, kind: str, name: str, value: Mapping[str, Any], lease_seconds: float, *, exclusive: bool = False
    ) -> Announcement:
        """Write an entry and keep it alive. It replaces another one of that name, whose owner learns of it.

        exclusive: instead of that, raise BusyError while another live owner has the name. Raises UsageError for names
        other than letters, digits, '.', '_' and '-', or values that are not JSON; EngineError without a connection.
        """
        lease = check_lease(
            LeasedEntry(kind=kind, name=name, owner=secrets.token_hex(8), seconds=lease_seconds, value=_plain(value))
        )
        announcement = Announcement(self, lease)
        if not self.send(announcement, lease, new=True, exclusive=exclusive):
            raise BusyError(f"{kind} {name} belongs to another live process; see `entries({kind!r})`")
        with self._wake:
            self._mine.append(announcement)
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="areal-leases", daemon=True)
                self._keeper.start()
            self._wake.notify_all()
        return announcement

    def entries(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return name to value of all live entries of a kind, sorted by name.

        Raises EngineError without a connection.
        """
        return self._store.entries(check_word(kind, "kind"))

    def wait_for(self, kind: str, count: int, timeout_seconds: float) -> dict[str, dict[str, Any]]:
        """Return the entries of a kind as soon as there are `count`.

        Raises EngineError, which names those that are there, when there are fewer in the end.
        """
        found = self._store.wait(check_word(kind, "kind"), count, timeout_seconds)
        if len(found) < count:
            shown = ", ".join(list(found)[:20]) or "none"
            raise EngineError(
                f"{len(found)} of {count} entries of kind {kind!r} in {self.where} after {timeout_seconds:g} s: {shown}"
            )
        return found

    def close(self) -> None:
        """Withdraw everything that was announced here, and disconnect. Idempotent."""
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        if self._keeper is not None:
            self._keeper.join()
        for announcement in list(self._mine):
            announcement.withdraw()
        self._store.close()

    def __enter__(self) -> Self:
        """Return the directory itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def send(
        self, announcement: Announcement, lease: LeasedEntry, *, new: bool = False, exclusive: bool = False
    ) -> bool:
        """Write or renew an entry; return whether it is still this process's."""
        begun = monotonic()
        if not self._store.put(lease, new=new, exclusive=exclusive):
            announcement.taken = True
            return False
        announcement.lease = lease
        # From before the request: the store's lease may have begun that early, so it is never longer than we think.
        announcement.renewed = begun
        announcement.due = begun + lease.seconds / _RENEWALS_PER_LEASE
        return True

    def withdraw(self, announcement: Announcement) -> None:
        """See `Announcement.withdraw`."""
        with self._wake:
            if announcement not in self._mine:
                return
            self._mine.remove(announcement)
        with announcement.lock, contextlib.suppress(ArealError):
            self._store.drop(announcement.lease)

    def _keep(self) -> None:
        while True:
            with self._wake:
                if self._ending:
                    return
                mine = [one for one in self._mine if not one.taken]
                due = min((one.due for one in mine), default=None)
                left = None if due is None else due - monotonic()
                if left is None or left > 0:
                    self._wake.wait(left)
                    continue
            for announcement in mine:
                if announcement.due <= monotonic():
                    self._renew(announcement)

    def _renew(self, announcement: Announcement) -> None:
        with announcement.lock:
            if announcement not in self._mine:
                return  # withdrawn in the meantime
            try:
                if not self.send(announcement, announcement.lease):
                    _logger.warning("%s", announcement.lost)
            except ArealError as error:
                _logger.warning("cannot renew %s %s: %s", announcement.lease.kind, announcement.lease.name, error)
                announcement.due = monotonic() + announcement.lease.seconds / _RETRIES_PER_LEASE


def open_directory(url: str, key: bytes, *, timeout_seconds: float = 10.0) -> Directory:
    """Open "tcp://HOST:PORT" (`serve_directory`) or "file:///FOLDER" (a folder that all hosts see).

    key: that of the job. timeout_seconds: how long each call tries to reach a service. Nothing is asked yet. Raises
    ConfigError for another URL.
    """
    expected = "expected tcp://HOST:PORT or file:///FOLDER"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"directory is {url!r}: {error}; {expected}") from error
    if parts.scheme == "tcp" and host and port and not parts.path:
        from areal.infra.directory.client import ServiceStore

        return Directory(ServiceStore(host, port, key, timeout_seconds=timeout_seconds), url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and parts.path != "/":
        from areal.infra.directory.folder import FolderStore

        return Directory(FolderStore(Path(unquote(parts.path)), key), url)
    raise ConfigError(f"directory is {url!r}, {expected}")


def read_key(path: str) -> bytes:
    """Return the key in a file. Raises ConfigError for one that is missing, too short, or readable by other users."""
    try:
        file = Path(path).expanduser()
        mode, key = file.stat().st_mode, file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the key of the directory: {error}") from error
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by other users (mode {mode & 0o777:o}); chmod 600 {path}")
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(f"{path} has {len(key)} bytes, expected at least {MIN_KEY_BYTES} random ones")
    return key


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a value as it will arrive, so that later changes by the caller are not sent by a renewal."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError):
        return dict(value)  # `check_lease` says what is wrong
    return copied
