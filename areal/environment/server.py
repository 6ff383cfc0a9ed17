"""Serve one environment over HTTP, so that it can run on another machine, or outlive a run.

    server = EnvironmentServer("my_package.maze:Maze", {"size": 5}, HostConfig(kind="subprocess"), ServerConfig())
    async with server.running():
        ...                                  # server.address, for host: {kind: http, url: ...}

    GET    /                                 {"protocol": 1, "environment", "options", "max_environments", "episodes"}
    POST   /episodes                         {"id"} -> 201 {"id", "lease_seconds"}
    POST   /episodes/ID/reset                {"row", "seed"} -> {"step": 0, "observation"}
    POST   /episodes/ID/step                 {"step": 1, "answer"} -> {"step": 1, "result"}; then 2, 3, ...
    POST   /episodes/ID/lease                -> 204: the episode is still wanted
    DELETE /episodes/ID                      -> 204, also when there is none (any more)

A client chooses the id of an episode, 16 to 64 letters and digits, so that asking for it twice gives it once. A reset
or step that is sent again, whatever became of its answer, is answered from memory and never done twice. An episode that
nobody has asked anything for `lease_seconds` is closed. What goes wrong is {"error": {"kind", "message"}}; see
`STATUS`. Environments run as in a trainer: limits, faults and what a process leaves behind are `EnvironmentPool`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from areal.api import Config, ConfigError, FaultError, FaultKind, UsageError, check_ranges, number
from areal.environment import wire
from areal.environment.pool import EnvironmentPool
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aiohttp import web

    from areal.environment.config import HostConfig
    from areal.environment.pool import HostedEnvironment

logger = getLogger(__name__)

STATUS: Final[dict[str, int]] = {
    "bad_request": 400,
    "unauthorized": 401,
    "missing": 404,
    "conflict": 409,
    "too_large": 413,
    "usage": 422,
    FaultKind.ENVIRONMENT_FAILED.value: 500,
    "capacity": 503,
    FaultKind.ENVIRONMENT_TIMEOUT.value: 504,
}
"""Kinds of errors and their HTTP status. Only "capacity" is worth waiting for."""

_CLOSE_PATIENCE: Final = 5.0
"""Seconds that closing may take beyond the limit of `close`: a process is killed within them."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
    """How an environment is served."""

    host: str = "127.0.0.1"
    """Address to listen at; one that is not loopback needs a key."""
    port: int = number(0, at_least=0, at_most=65535)
    """Port to listen at; 0 takes a free one."""
    key: str = ""
    """What clients have to send as `Authorization: Bearer KEY`; at least 32 characters, "" for none."""
    lease_seconds: float = number(120.0, above=0)
    """An episode is closed when nobody has asked anything of it for this long, seconds; clients of areal renew it."""
    max_body_bytes: int = number(16 << 20, at_least=1000)
    """Of a request."""
    max_answer_bytes: int = number(1 << 20, at_least=1000)
    """Of an answer; a larger observation is the environment's failure."""
    body_seconds: float = number(30.0, above=0)
    """Until a request is there as a whole, seconds."""

    def __post_init__(self) -> None:
        """Check ranges, and that nobody unknown gets in."""
        check_ranges(self, "server.")
        if self.key and len(self.key) < wire.MIN_KEY_CHARACTERS:
            raise ConfigError(
                f"the key has {len(self.key)} characters, expected at least {wire.MIN_KEY_CHARACTERS}",
                fix="python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
            )
        if not self.key and not wire.is_loopback(self.host):
            raise ConfigError(
                f"{self.host!r} is an address that other machines may reach, and there is no key: whoever finds it "
                f"runs the environment",
                fix="set a key of at least 32 characters, or listen at 127.0.0.1",
            )


class RefusedCallError(Exception):
    """What a request is refused with; `kind` is of `STATUS`."""

    def __init__(self, kind: str, message: str) -> None:
        """kind: of `STATUS`."""
        super().__init__(message)
        self.kind = kind


class EnvironmentServer:
    """See the module. All methods are called on one event loop."""

    def __init__(self, name: str, options: Mapping[str, Any], host: HostConfig, config: ServerConfig) -> None:
        """Build the environment's factory, where it runs in this process; else `running` does. Raises as
        `EnvironmentPool`.
        """
        try:
            import aiohttp  # noqa: F401 - says at once what is missing
        except ModuleNotFoundError as error:
            raise ConfigError("serving an environment needs aiohttp", fix="pip install 'areal[servers]'") from error
        if host.kind == "http":
            raise ConfigError("a server runs environments itself: host.kind process or subprocess, not http")
        self._name, self._options, self._host, self._config = name, dict(options), host, config
        self._pool = EnvironmentPool(name, options, host)
        self._episodes: dict[str, _ServedEpisode] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._address = ""
        self.num_expired = 0
        """Episodes that were closed because nobody asked for them any more."""

    @property
    def address(self) -> str:
        """http://host:port, while it runs."""
        return self._address

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the server up inside; in the end every episode is closed. Raises ConfigError when it cannot listen, and
        as `EnvironmentPool.prove`.
        """
        from aiohttp import web

        await self._pool.prove()
        app = web.Application(client_max_size=self._config.max_body_bytes, middlewares=[self._guard()])
        app.router.add_get("/", self._describe)
        app.router.add_post("/episodes", self._open)
        app.router.add_post("/episodes/{id}/reset", self._reset)
        app.router.add_post("/episodes/{id}/step", self._step)
        app.router.add_post("/episodes/{id}/lease", self._renew)
        app.router.add_delete("/episodes/{id}", self._delete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        sweeper: asyncio.Task[None] | None = None
        try:
            try:
                await web.TCPSite(runner, self._config.host, self._config.port).start()
            except OSError as error:
                raise ConfigError(
                    f"cannot listen at {self._config.host}:{self._config.port}: {error.strerror}",
                    fix="give a free port, or 0 for any",
                ) from error
            host, port = runner.addresses[0][:2]
            self._address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            sweeper = asyncio.create_task(self._sweep(), name="areal-environment-leases")
            yield
        finally:
            self._address = ""
            if sweeper is not None:
                sweeper.cancel()
            await asyncio.gather(*(self._ended(name) for name in list(self._episodes)))
            await runner.cleanup()
            await asyncio.gather(*(self._ended(name) for name in list(self._episodes)))  # begun meanwhile

    # ---- requests

    async def _describe(self, request: web.Request) -> web.Response:
        del request
        return _answer(
            {
                "protocol": wire.PROTOCOL,
                "environment": self._name,
                "options": self._options,
                "max_environments": self._host.max_environments,
                "episodes": len(self._episodes),
            }
        )

    async def _open(self, request: web.Request) -> web.Response:
        name = (await self._body(request)).get("id")
        if not isinstance(name, str) or not 16 <= len(name) <= 64 or not (name.isascii() and name.isalnum()):
            raise RefusedCallError("bad_request", "id: expected 16 to 64 letters and digits that nobody can guess")
        if name in self._closing:
            raise RefusedCallError("conflict", "this episode is being closed")
        if name not in self._episodes:
            if len(self._episodes) >= self._host.max_environments:
                raise RefusedCallError("capacity", f"all {self._host.max_environments} environments are in use")
            self._episodes[name] = _ServedEpisode(self._pool, self._config.max_answer_bytes)
        return _answer({"id": name, "lease_seconds": self._config.lease_seconds}, status=201)

    async def _reset(self, request: web.Request) -> web.Response:
        episode, body = self._find(request), await self._body(request)
        row, seed = body.get("row"), body.get("seed")
        if not isinstance(row, dict) or not isinstance(seed, int) or isinstance(seed, bool):
            raise RefusedCallError("bad_request", "expected row, an object, and seed, a whole number")

        async def reset(environment: HostedEnvironment) -> dict[str, Any]:
            return {"step": 0, "observation": wire.observation_to_plain(await environment.reset(row, seed))}

        return _raw(await episode.take(0, body, reset))

    async def _step(self, request: web.Request) -> web.Response:
        episode, body = self._find(request), await self._body(request)
        step = body.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise RefusedCallError("bad_request", f"step is {step!r:.40}, expected 1, 2, 3, ...")
        try:
            answer = wire.turn_from_plain(body["answer"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RefusedCallError("bad_request", f"answer: {type(error).__name__}: {error}") from error

        async def take(environment: HostedEnvironment) -> dict[str, Any]:
            return {"step": step, "result": wire.result_to_plain(await environment.step(answer))}

        return _raw(await episode.take(step, body, take))

    async def _renew(self, request: web.Request) -> web.Response:
        self._find(request)
        return _answer(None, status=204)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._ended(request.match_info["id"])
        return _answer(None, status=204)

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._config.body_seconds):
                text = await request.read()
        except TimeoutError as error:
            raise RefusedCallError("bad_request", "the body did not arrive in time") from error
        try:
            body = wire.read_json(text)
        except ValueError as error:
            raise RefusedCallError("bad_request", f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise RefusedCallError("bad_request", "the body is not a JSON object")
        return body

    def _find(self, request: web.Request) -> _ServedEpisode:
        name = request.match_info["id"]
        if name not in self._episodes or name in self._closing:
            message = "there is no such episode: it was closed, its lease ran out, or this server is another one"
            raise RefusedCallError("missing", message)
        episode = self._episodes[name]
        episode.touched = monotonic()
        return episode

    # ---- life of episodes

    async def _ended(self, name: str) -> None:
        """Close an episode, once, however many ask for it; its place is free when it is closed, and not before."""
        if name not in self._episodes:
            return
        if name not in self._closing:
            self._closing[name] = asyncio.create_task(self._close(name))
        await asyncio.shield(self._closing[name])

    async def _close(self, name: str) -> None:
        try:
            await self._episodes[name].close(self._host.close_seconds + _CLOSE_PATIENCE)
        finally:
            del self._episodes[name], self._closing[name]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._config.lease_seconds / 4))
            late = monotonic() - self._config.lease_seconds
            for name, episode in list(self._episodes.items()):
                if episode.touched < late and not episode.is_busy and name not in self._closing:
                    self.num_expired += 1
                    logger.warning("an episode was closed: nobody asked for it for %g s", self._config.lease_seconds)
                    self._closing[name] = asyncio.create_task(self._close(name))

    # ---- who asks

    def _guard(self) -> Any:
        from aiohttp import web

        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            try:
                self._check_sender(request)
                return await handler(request)
            except RefusedCallError as error:
                return _refused(error.kind, str(error))
            except FaultError as error:
                return _refused(error.kind.value, error.message)
            except UsageError as error:
                return _refused("usage", str(error))
            except web.HTTPRequestEntityTooLarge:
                return _refused("too_large", f"the body has more than {self._config.max_body_bytes} bytes")
            except web.HTTPException as error:
                kind = "missing" if error.status in {404, 405} else "bad_request"
                return _refused(kind, f"{request.method} {request.path}: {error.reason}")

        return guard

    def _check_sender(self, request: web.Request) -> None:
        """Refuse who has no key; without one, names that somebody lets point at this machine."""
        if self._config.key:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self._config.key.encode())
            if scheme.lower() != "bearer" or not same:
                raise RefusedCallError("unauthorized", "the key is missing or wrong")
            return
        try:
            name = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        except ValueError:
            name = ""
        if not wire.is_loopback(name):
            raise RefusedCallError("unauthorized", "the Host header is not this server's")


class _ServedEpisode:
    """One episode: a task that holds its environment, and the last request with what came of it."""

    def __init__(self, pool: EnvironmentPool, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._todo: asyncio.Queue[Callable[[HostedEnvironment], Awaitable[dict[str, Any]]] | None] = asyncio.Queue()
        self._number, self._digest = -1, ""
        """Of the last request."""
        self._answer: asyncio.Future[bytes] | None = None
        self.touched = monotonic()
        self._owner = asyncio.create_task(self._own(pool))

    @property
    def is_busy(self) -> bool:
        """Whether a request is in work."""
        return self._answer is not None and not self._answer.done()

    async def take(
        self, step: int, body: Mapping[str, Any], do: Callable[[HostedEnvironment], Awaitable[dict[str, Any]]]
    ) -> bytes:
        """Do a request, or return what came of it before. Raises RefusedCallError, and what `do` raises."""
        digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        if step != self._number:
            if step != self._number + 1:
                raise RefusedCallError("conflict", f"step {step}, expected {self._number + 1}")
            if self.is_busy:
                raise RefusedCallError("conflict", f"step {self._number} is still in work")
            if self._answer is not None and self._answer.exception() is not None:
                raise RefusedCallError("conflict", f"the episode failed in step {self._number}; begin another one")
            self._number, self._digest = step, digest
            self._answer = asyncio.get_running_loop().create_future()
            # Whoever asked may be gone: nobody needs to look at an error.
            self._answer.add_done_callback(lambda future: future.cancelled() or future.exception())
            self._todo.put_nowait(do)
        elif digest != self._digest:
            raise RefusedCallError("conflict", f"step {step} was asked for before, with something else in it")
        assert self._answer is not None, "set with the number"
        try:
            return await asyncio.shield(self._answer)
        finally:
            self.touched = monotonic()

    async def close(self, seconds: float) -> None:
        """End the environment; a call in work is given up."""
        if self.is_busy:
            self._owner.cancel()
        self._todo.put_nowait(None)
        done, _ = await asyncio.wait({self._owner}, timeout=seconds)
        if not done:
            self._owner.cancel()
            logger.warning("an episode did not end within %g s", seconds)

    async def _own(self, pool: EnvironmentPool) -> None:
        """Hold the environment, and do requests one by one until None comes."""
        do = await self._todo.get()  # nothing is started for an episode that nobody begins
        try:
            if do is None:
                return
            async with pool.episode() as environment:
                while do is not None:
                    answer = self._answer
                    assert answer is not None, "a request comes with its future"
                    try:
                        answer.set_result(self._encoded(await do(environment)))
                    except (FaultError, UsageError) as error:
                        environment.broken = True
                        answer.set_exception(error)
                    except (TypeError, ValueError) as error:
                        environment.broken = True
                        answer.set_exception(FaultError(FaultKind.ENVIRONMENT_FAILED, f"cannot be sent: {error}"))
                    do = await self._todo.get()
        except (FaultError, UsageError) as error:
            self._fail(error)  # the environment could not be made
        except BaseException as error:
            message = f"the episode was closed meanwhile ({type(error).__name__})"
            self._fail(FaultError(FaultKind.ENVIRONMENT_FAILED, message))
            if not isinstance(error, asyncio.CancelledError):
                logger.exception("an episode failed")

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _encoded(self, answer: dict[str, Any]) -> bytes:
        body = json.dumps(answer, allow_nan=False).encode()
        if len(body) > self._max_answer_bytes:
            message = f"it answered with {len(body)} bytes, more than {self._max_answer_bytes}"
            raise FaultError(FaultKind.ENVIRONMENT_FAILED, message)
        return body


def _answer(body: Any, *, status: int = 200) -> web.Response:
    from aiohttp import web

    return web.Response(status=status) if body is None else web.json_response(body, status=status)


def _raw(body: bytes) -> web.Response:
    from aiohttp import web

    return web.Response(body=body, content_type="application/json")


def _refused(kind: str, message: str) -> web.Response:
    return _answer({"error": {"kind": kind, "message": message}}, status=STATUS.get(kind, 500))
