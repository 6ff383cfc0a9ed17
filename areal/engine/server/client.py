"""Sends HTTP requests to inference servers: JSON in, JSON or a stream of JSON events out, typed errors otherwise.

Answers are checked before they are used: an error page of a proxy, a truncated answer or a stream without its end mark
is an error, never an empty or shortened generation.
"""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from areal.engine.server.errors import BadAnswerError, BadStatusError, ConnectionFailedError, StalledError
from areal.utils import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import aiohttp

_SHOWN = 300
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 2.0
"""Longest idle time after which a connection is reused. Servers close theirs after 5 s (uvicorn), and a request on a
closing connection looks like a failure of the server; a few of these would evict a healthy server."""


class ServerClient:
    """HTTP session for all servers of an engine. Use and close it on one event loop."""

    def __init__(self, *, api_key: str = "") -> None:
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def get(self, url: str, path: str, *, timeout: float) -> Any:
        """Return the JSON answer of a GET; None for an empty answer."""
        return await self._exchange("GET", url, path, None, timeout)

    async def post(self, url: str, path: str, body: Mapping[str, Any] | bytes | None = None, *, timeout: float) -> Any:
        """Return the JSON answer of a POST; None for an empty answer. body: bytes are JSON already."""
        return await self._exchange("POST", url, path, body or {}, timeout)

    async def post_for_text(self, url: str, path: str, body: Mapping[str, Any], *, timeout: float) -> str:
        """Return the answer of a POST as it is."""
        return str(await self._exchange("POST", url, path, body, timeout, parse=lambda text, _: text))

    async def events(
        self, url: str, path: str, body: Mapping[str, Any] | bytes, *, patience: float
    ) -> AsyncIterator[Mapping[str, Any] | None]:
        """Yield the server-sent events that answer a POST, up to "[DONE]". body: as of `post`.

        Yields None whenever nothing arrived for `patience` seconds: the caller decides whether that is too long. Raises
        ConnectionFailedError when the stream ends before its end mark, BadAnswerError for anything that is not an
        event.
        """
        where = f"{url}{path}"
        try:
            with tracing.async_span(f"POST {path}", leaf=True, server=url):
                headers = {"Accept": "text/event-stream", **self._headers}
                async with self._open().post(where, **_content(body, headers)) as response:
                    if response.status != 200:
                        raise BadStatusError(response.status, where, _excerpt(await response.text(errors="replace")))
                    if response.content_type != "text/event-stream":
                        text = _excerpt(await response.text(errors="replace"))
                        raise BadAnswerError(f"{where} answered {response.content_type}, not an event stream: {text}")
                    async for event in _parse_events(response.content, where, patience):
                        yield event
        except (OSError, self._errors()) as error:
            raise ConnectionFailedError(f"{where}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(
        self,
        method: str,
        url: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        timeout: float,
        *,
        parse: Callable[[str, str], Any] | None = None,
    ) -> Any:
        where = f"{url}{path}"
        try:
            with tracing.async_span(f"{method} {path}", server=url):
                async with asyncio.timeout(timeout):
                    async with self._open().request(method, where, **_content(body, self._headers)) as response:
                        text = await response.text(errors="replace")
                        if response.status >= 300:
                            raise BadStatusError(response.status, where, _excerpt(text))
                        return (parse or _parse)(text, where)
        except TimeoutError:
            raise StalledError(f"{where} did not answer within {timeout:g} s") from None
        except (OSError, self._errors()) as error:
            raise ConnectionFailedError(f"{where}: {type(error).__name__}: {error}") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectionFailedError("the client is closed")
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                # As many connections as requests in flight: the servers queue, not this client.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                read_bufsize=2**20,
            )
        return self._session

    @staticmethod
    def _errors() -> type[Exception]:
        import aiohttp

        return aiohttp.ClientError


def open_directly(request: urllib.request.Request | str, timeout: float) -> Any:
    """Open a URL of a server, which is not behind the proxy by which this machine may reach other places."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


def is_healthy(url: str, timeout: float, path: str = "/health") -> bool:
    """Return whether GET /health answers 200. For threads without an event loop."""
    try:
        with open_directly(f"{url}{path}", timeout) as response:
            return int(response.status) == 200
    except urllib.error.HTTPError as error:
        error.close()  # It holds the connection.
        return False
    except (OSError, ValueError):
        return False


def _content(body: Mapping[str, Any] | bytes | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return how aiohttp is given a body and headers; long ones as a stream, which other tasks may interrupt."""
    if isinstance(body, bytes):
        return {"data": io.BytesIO(body), "headers": {**headers, "Content-Type": "application/json"}}
    return {"json": body, "headers": headers}


async def _parse_events(
    content: aiohttp.StreamReader, where: str, patience: float
) -> AsyncIterator[Mapping[str, Any] | None]:
    reading = asyncio.ensure_future(content.readline())
    try:
        while True:
            done, _ = await asyncio.wait({reading}, timeout=patience)
            if not done:
                yield None
                continue
            line = reading.result()
            if not line:
                raise ConnectionFailedError(f"{where}: the stream ended without its end mark")
            reading = asyncio.ensure_future(content.readline())
            text = line.strip()
            if not text or text.startswith(b":"):
                continue
            if not text.startswith(b"data:"):
                raise BadAnswerError(f"{where}: not an event: {_excerpt(text.decode(errors='replace'))}")
            data = text[5:].strip()
            if data == b"[DONE]":
                return
            yield _event(data, where)
    finally:
        reading.cancel()


def _event(data: bytes, where: str) -> Mapping[str, Any]:
    event = _parse(data.decode(errors="replace"), where)
    if not isinstance(event, dict):
        raise BadAnswerError(f"{where}: an event is {type(event).__name__}, expected an object")
    error = event.get("error")
    if error:
        status = error.get("code", 500) if isinstance(error, dict) else 500
        raise BadStatusError(status if isinstance(status, int) else 500, where, _excerpt(json.dumps(error)))
    return event


def _parse(text: str, where: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadAnswerError(f"{where} answered no valid JSON ({error}): {_excerpt(text)}") from error


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]}..."
