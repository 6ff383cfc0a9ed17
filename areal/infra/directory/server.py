"""The directory as a service: one event loop in a thread, leases in memory, connections that proved to have the key.

A visitor that sends garbage, nothing, or does not read is disconnected; the others do not notice. What is stored ends
with the process: owners send it again with their next renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self

from areal.api import EngineError, UsageError
from areal.infra.directory.channel import Channel, ChannelError
from areal.infra.directory.lease import MAX_VALUE_BYTES, LeasedEntry, check_lease, check_word
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from types import TracebackType

_logger = getLogger(__name__)
_ADMIT_SECONDS: Final = 5.0
_WRITE_SECONDS: Final = 30.0
_LONGEST_WAIT_SECONDS: Final = 30.0
_MAX_LINE_BYTES: Final = 2 * MAX_VALUE_BYTES
_MAX_VISITORS: Final = 4096
"""Connections that have not proved to have the key yet."""
_MAX_ENTRIES: Final = 65536
_BACKLOG: Final = 4096
_FILES: Final = 16384
_ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})


class DirectoryServer:
    """A running service; use `serve_directory`."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._host, self._port, self._key = host, port, key
        self._table = _LeaseTable()
        self._visitors = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="areal-directory", daemon=True)
        self._thread.start()
        listen = asyncio.start_server(self._connected, host, port, limit=_MAX_LINE_BYTES, backlog=_BACKLOG)
        try:
            self._server = asyncio.run_coroutine_threadsafe(listen, self._loop).result()
        except OSError as error:
            self._end_loop()
            raise EngineError(
                f"cannot listen at {host} port {port}: {error}; choose an address of this host"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """For `open_directory`, e.g. "tcp://10.0.0.1:41733"."""
        return f"tcp://[{self._host}]:{self._port}" if ":" in self._host else f"tcp://{self._host}:{self._port}"

    def close(self) -> None:
        """Disconnect everybody and forget all entries. Idempotent."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._end_loop()

    def __enter__(self) -> Self:
        """Return the server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    async def _stop(self) -> None:
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._connections.add(task)
        try:
            channel = await self._admit(reader, writer)
            while channel is not None:
                request = channel.unseal(await reader.readuntil(b"\n"))
                await _write(writer, channel.seal(await self._answer(request)))
        except (ChannelError, TimeoutError, ValueError, OSError, asyncio.IncompleteReadError):
            pass  # a stranger, or a client that has ended
        except asyncio.LimitOverrunError:
            _logger.warning("a client sent a line of more than %d bytes and was disconnected", _MAX_LINE_BYTES)
        except asyncio.CancelledError:
            pass  # the end of the service
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        """Let a visitor prove that it has the key; None when there are too many."""
        if self._visitors >= _MAX_VISITORS:
            return None
        self._visitors += 1
        try:
            async with asyncio.timeout(_ADMIT_SECONDS):
                channel = Channel(self._key, is_server=True)
                await _write(writer, channel.greeting())
                await _write(writer, channel.admit(await reader.readuntil(b"\n")))
                return channel
        finally:
            self._visitors -= 1

    async def _answer(self, request: Any) -> str:
        """Return the JSON text of the answer to one request; a wrong one is answered with what is wrong."""
        try:
            match request:
                case {"do": "put", "lease": dict() as fields, "new": bool() as new, "exclusive": bool() as exclusive}:
                    return json.dumps(
                        {"ok": self._table.put(check_lease(LeasedEntry(**fields)), new=new, exclusive=exclusive)}
                    )
                case {"do": "drop", "lease": dict() as fields}:
                    self._table.drop(check_lease(LeasedEntry(**fields)))
                    return json.dumps({"ok": True})
                case {"do": "list", "kind": str() as kind, "count": int() as count, "seconds": int() | float() as most}:
                    check_word(kind, "kind")
                    await self._table.wait(kind, count, min(most, _LONGEST_WAIT_SECONDS))
                    return self._table.listing(kind)
        except (UsageError, TypeError) as error:
            return json.dumps({"error": str(error)})
        return json.dumps({"error": f"unknown request {str(request)[:200]}"})


def serve_directory(host: str, key: bytes, *, port: int = 0) -> DirectoryServer:
    """Start the service at an address of this host that all clients reach; port 0 takes a free one.

    key: at least 16 bytes that only processes of this job know. Raises UsageError for a host that means every
    interface, since clients need one address; EngineError when it cannot listen there.
    """
    if host in _ANY_HOST:
        raise UsageError(
            f"host is {host!r}, expected one address that clients reach; `own_address` (areal.infra.directory.address) "
            "finds it"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # One per client; the usual 1,024 are too few for the ranks of a large job.
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return DirectoryServer(host, port, key)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_WRITE_SECONDS):
        await writer.drain()


class _LeaseTable:
    """The leases of all kinds, by this process's monotonic clock. Used by one event loop."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, tuple[LeasedEntry, float]]] = {}
        """Kind, name to lease and the time at which it ends."""
        self._listings: dict[str, str] = {}
        self._waiting: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}

    def put(self, lease: LeasedEntry, *, new: bool, exclusive: bool) -> bool:
        held = self._live(lease.kind)
        before = held.get(lease.name)
        if before is not None and before[0].owner != lease.owner and (exclusive or not new):
            return False
        if before is None and sum(map(len, self._held.values())) >= _MAX_ENTRIES:
            raise UsageError(f"this directory has {_MAX_ENTRIES} entries already and takes no more")
        held[lease.name] = (lease, monotonic() + lease.seconds)
        if before is None or before[0] != lease:
            self._listings.pop(lease.kind, None)
        for count, future in self._waiting.get(lease.kind, ()):
            if count <= len(held) and not future.done():
                future.set_result(None)
        return True

    def drop(self, lease: LeasedEntry) -> None:
        held = self._live(lease.kind)
        if lease.name in held and held[lease.name][0].owner == lease.owner:
            del held[lease.name]
            self._listings.pop(lease.kind, None)

    async def wait(self, kind: str, count: int, seconds: float) -> None:
        deadline = monotonic() + seconds
        while len(self._live(kind)) < count and (left := deadline - monotonic()) > 0:
            entry = (count, asyncio.get_running_loop().create_future())
            waiting = self._waiting.setdefault(kind, [])
            waiting.append(entry)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(entry[1], left)
            finally:
                waiting.remove(entry)

    def listing(self, kind: str) -> str:
        """Return the answer with all live entries; many clients ask for the same one."""
        held = self._live(kind)
        if kind not in self._listings:
            self._listings[kind] = json.dumps({"ok": {name: held[name][0].value for name in sorted(held)}})
        return self._listings[kind]

    def _live(self, kind: str) -> dict[str, tuple[LeasedEntry, float]]:
        held, now = self._held.setdefault(kind, {}), monotonic()
        for name in [name for name, (_, end) in held.items() if end <= now]:
            del held[name]
            self._listings.pop(kind, None)
        return held
