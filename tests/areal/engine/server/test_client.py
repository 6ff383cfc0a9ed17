"""Connections to inference servers: kept while they are used, and not used again once a server may have ended them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from areal.engine.server import client as client_module
from areal.engine.server.client import ServerClient

if TYPE_CHECKING:
    import pytest

IDLE_SECONDS_OF_UVICORN = 5.0


class CountingServer:
    """Answers every request with {}, keeps connections open, and counts them."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        body = json.dumps({}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(head + body)
            await writer.drain()
        writer.close()


async def _connections_of_two_requests(pause: float) -> int:
    counting = CountingServer()
    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = ServerClient()
    try:
        assert await client.get(url, "/", timeout=10) == {}
        await asyncio.sleep(pause)
        assert await client.get(url, "/", timeout=10) == {}
    finally:
        await client.close()
        server.close()
    return counting.connections


def test_requests_that_follow_each_other_share_a_connection() -> None:
    assert asyncio.run(_connections_of_two_requests(0.0)) == 1


def test_a_connection_that_was_idle_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_module._IDLE_SECONDS < IDLE_SECONDS_OF_UVICORN
    monkeypatch.setattr(client_module, "_IDLE_SECONDS", 0.2)
    assert asyncio.run(_connections_of_two_requests(0.5)) == 2


def test_servers_are_asked_without_the_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def ask() -> bool:
        server = await asyncio.start_server(CountingServer().serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            return await asyncio.to_thread(client_module.is_healthy, url, 10.0)
        finally:
            server.close()

    assert asyncio.run(ask())
