"""Closes connections on which no request arrives: a client that sends its headers byte by byte would hold one for ever.

aiohttp has a time limit for idle connections that begins with their first answer, and none for the headers before it.
"""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiohttp.web_protocol import RequestHandler


class ConnectionClock:
    """How long each connection has been without a request in work."""

    def __init__(self, seconds: float) -> None:
        """seconds: what headers may take, from the connection or the answer before them."""
        self._seconds = seconds
        self._since: dict[RequestHandler, float] = {}
        self._working: set[RequestHandler] = set()

    @contextlib.contextmanager
    def working(self, connection: RequestHandler) -> Iterator[None]:
        """Stop the clock of a connection while a request is worked on, whose headers are there."""
        self._working.add(connection)
        try:
            yield
        finally:
            self._working.discard(connection)
            self._since[connection] = monotonic()

    def close_late(self, connections: Iterable[RequestHandler]) -> int:
        """Close the connections that have waited for too long, of all that are open; return how many."""
        now, closed = monotonic(), 0
        since, self._since = self._since, {}
        for connection in list(connections):
            begun = self._since[connection] = since.get(connection, now)
            if connection not in self._working and now - begun > self._seconds:
                connection.force_close()
                closed += 1
        return closed
