"""Leases kept by the directory service, asked over TCP.

Requests wait for nothing but each other's answer, so every thread that asks at the same time has a connection of its
own: a renewal is never late because another thread waits for the job to be complete.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import asdict
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from areal.api import EngineError, UsageError
from areal.infra.directory.channel import Channel, ChannelError

if TYPE_CHECKING:
    from areal.infra.directory.lease import LeasedEntry

_ANSWER_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.2
_WAIT_SECONDS: Final = 20.0
"""For one request that waits; the next one follows."""
_MAX_ANSWER_BYTES: Final = 2**30


class ServiceStore:
    """`LeaseStore` of a service at host and port. timeout_seconds: how long each call tries to reach it."""

    def __init__(self, host: str, port: int, key: bytes, *, timeout_seconds: float) -> None:
        self._host, self._port, self._key = host, port, key
        self._timeout_seconds = timeout_seconds
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def put(self, lease: LeasedEntry, *, new: bool, exclusive: bool) -> bool:
        """See `LeaseStore.put`."""
        # Sent twice when the first answer got lost; the owner is the same, so that changes nothing.
        return bool(self._ask({"do": "put", "lease": asdict(lease), "new": new, "exclusive": exclusive}))

    def drop(self, lease: LeasedEntry) -> None:
        """See `LeaseStore.drop`."""
        # Once is enough: the entry ends with its lease, and who withdraws it is about to end as well.
        self._ask({"do": "drop", "lease": asdict(lease)}, patient=False)

    def entries(self, kind: str) -> dict[str, dict[str, Any]]:
        """See `LeaseStore.entries`."""
        return self.wait(kind, 0, 0.0)

    def wait(self, kind: str, count: int, seconds: float) -> dict[str, dict[str, Any]]:
        """See `LeaseStore.wait`."""
        deadline = monotonic() + seconds
        while True:
            left = max(0.0, deadline - monotonic())
            request = {"do": "list", "kind": kind, "count": count, "seconds": min(left, _WAIT_SECONDS)}
            found: dict[str, dict[str, Any]] = self._ask(request)
            if len(found) >= count or left <= _WAIT_SECONDS:
                return found

    def close(self) -> None:
        """See `LeaseStore.close`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, request: dict[str, Any], *, patient: bool = True) -> Any:
        deadline = monotonic() + (self._timeout_seconds if patient else 0.0)
        while True:
            try:
                with self._connection() as connection:
                    answer = connection.ask(request)
                break
            except (OSError, EOFError) as error:
                if monotonic() >= deadline or self._closed:
                    raise EngineError(
                        f"the directory at {self._host}:{self._port} does not answer: "
                        f"{str(error) or 'connection lost'}; is the first process of the job alive, and is its address "
                        "reachable from this host"
                    ) from error
            except ChannelError as error:
                raise EngineError(f"cannot use the directory at {self._host}:{self._port}: {error}") from error
            sleep(_PAUSE_SECONDS)
        if "error" in answer:
            raise UsageError(f"the directory at {self._host}:{self._port} refuses a request: {answer['error']}")
        return answer["ok"]

    @contextlib.contextmanager
    def _connection(self) -> Any:
        """Lend a connection; one on which anything failed is not used again."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = _Connection(self._host, self._port, self._key)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


class _Connection:
    """One authenticated connection, for one request at a time."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._channel = Channel(key, is_server=False)
        self._socket = socket.create_connection((host, port), timeout=_ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        try:
            self._socket.sendall(self._channel.answer(self._line(_ANSWER_SECONDS)))
            try:
                proof = self._line(_ANSWER_SECONDS)
            except (EOFError, ConnectionError):
                raise ChannelError("it does not accept this job's key") from None
            self._channel.confirm(proof)
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer."""
        self._socket.sendall(self._channel.seal(json.dumps(request)))
        answer = self._channel.unseal(self._line(request.get("seconds", 0.0) + _ANSWER_SECONDS))
        if not isinstance(answer, dict):
            raise ChannelError("it does not speak this protocol")
        return answer

    def close(self) -> None:
        """Disconnect."""
        self._file.close()
        self._socket.close()

    def _line(self, seconds: float) -> bytes:
        self._socket.settimeout(seconds)
        line = self._file.readline(_MAX_ANSWER_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        return line
