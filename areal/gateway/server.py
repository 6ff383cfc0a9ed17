"""The HTTP server: OpenAI chat completions and responses, Anthropic messages, for every session of one policy.

    gateway = Gateway(Renderer(...), GatewayConfig())
    async with gateway.running():
        session = gateway.open(engine, gconfig)          # session.urls.openai, session.key

It runs on the event loop that the engine is awaited on. The key of a request decides about its session; the path
before /v1 is only a label. It listens on loopback, forwards to nobody, reads no file that a request names, and logs no
content.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from areal.api import ConfigError, EngineError, UsageError
from areal.gateway.connections import ConnectionClock
from areal.gateway.continuation import ContinuationWatch
from areal.gateway.dump import RequestDump
from areal.gateway.sessions import Session, SessionUrls
from areal.gateway.wire import chat, messages, responses
from areal.gateway.wire.common import RefusedRequestError, read_json
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web

    from areal.api import GenerationConfig, InferenceEngine
    from areal.gateway.config import GatewayConfig, SessionLimits
    from areal.gateway.rendering import Renderer
    from areal.gateway.wire.common import AnswerRequest, Dialect, Reply

logger = getLogger(__name__)

_LOCAL_NAMES: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SWEEP_SECONDS: Final = 5.0
_ENDED_KEPT: Final = 10_000
_DEPARTED: Final = (ConnectionError, OSError)
"""What writing to a client that is gone raises."""


class Gateway:
    """See the module. All methods are called on one event loop."""

    def __init__(
        self,
        renderer: Renderer,
        config: GatewayConfig,
        *,
        admin_key: str = "",
        on_open: Callable[[], Session] | None = None,
    ) -> None:
        """admin_key, on_open: let who has the key open sessions over HTTP, each made by `on_open`, which raises
        RefusedRequestError when there is no place for one.
        """
        try:
            import aiohttp  # noqa: F401 - says at once what is missing
        except ModuleNotFoundError as error:
            raise ConfigError("the gateway needs aiohttp", fix="pip install 'areal[servers]'") from error
        if admin_key and len(admin_key) < 32:
            raise ConfigError(f"the admin key has {len(admin_key)} characters, expected at least 32")
        self._renderer, self._config = renderer, config
        self._admin_key, self._on_open = admin_key, on_open
        self._sessions: dict[bytes, Session] = {}
        self._ended: dict[bytes, None] = {}
        self._unscored: dict[bytes, Session] = {}
        """Closed sessions that may still get a reward."""
        self._users = 0
        self._starting = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._continuation = ContinuationWatch()
        self._dump: RequestDump | None = None
        self._clock = ConnectionClock(config.header_seconds)
        self._sweeper: asyncio.Task[None] | None = None
        self._address = ""
        self._told: set[str] = set()

    @property
    def address(self) -> str:
        """http://host:port, while it runs."""
        return self._address

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the server up inside; several users share it, and the last one ends it."""
        async with self._starting:
            if not self._users:
                await self._start()
            self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self._stop()

    def open(
        self,
        engine: InferenceEngine,
        gconfig: GenerationConfig,
        *,
        limits: SessionLimits | None = None,
        may_score: bool = False,
    ) -> Session:
        """Open a session on `engine`. limits: None takes those of the configuration. may_score: see `Session`."""
        if not self._address:
            raise EngineError("the gateway does not run: open sessions inside of running()")
        name = secrets.token_hex(4)
        base = f"{self._address}/s/{name}"
        session = Session(
            name,
            engine=engine,
            gconfig=gconfig,
            renderer=self._renderer,
            config=self._config,
            limits=limits or self._config.limits,
            urls=SessionUrls(openai=f"{base}/v1", anthropic=base),
            may_score=may_score,
        )
        self._sessions[_key_digest(session.key)] = session
        return session

    async def close(self, session: Session) -> None:
        """Close a session. Its key is dead from then on, but for a reward until `reward_deadline`; who still uses it
        gets the error of a closed session.
        """
        await session.close()
        name = _key_digest(session.key)
        if self._sessions.pop(name, None) is not None:
            self._ended[name] = None
            if session.awaits_reward:
                self._unscored[name] = session
            while len(self._ended) > _ENDED_KEPT:
                del self._ended[next(iter(self._ended))]
            self._continuation.note(session)
        for field in sorted(session.unknown - self._told):
            self._told.add(field)
            logger.info("a client sends %r, which means nothing here and is ignored", field)

    async def finish(self, session: Session) -> None:
        """Wait until a closed session has its reward, or the deadline for it has passed; no reward counts after."""
        await session.wait_for_reward()
        self._unscored.pop(_key_digest(session.key), None)

    # ---- life

    async def _start(self) -> None:
        from aiohttp import web

        self._renderer.serve_from_this_thread()
        if self._config.dump_folder:
            self._dump = RequestDump(Path(self._config.dump_folder), most_bytes=self._config.dump_bytes)
        app = web.Application(client_max_size=self._config.max_body_bytes, middlewares=[self._guarded])
        for prefix in ("", "/s/{label}"):
            for path, dialect in _DIALECTS.items():
                app.router.add_post(f"{prefix}{path}", self._answers(dialect))
            app.router.add_post(f"{prefix}/v1/messages/count_tokens", self._count_tokens)
            app.router.add_get(f"{prefix}/v1/models", self._models)
            app.router.add_get(f"{prefix}/v1/models/{{model:.+}}", self._models)
            app.router.add_post(f"{prefix}/rl/reward", self._reward)
            app.router.add_get(f"{prefix}/rl/session", self._describe)
        app.router.add_get("/health", _health)
        app.router.add_post("/rl/sessions", self._open_session)
        app.router.add_delete("/rl/sessions/{name}", self._close_session)
        app.router.add_post("/rl/sessions/{name}/reward", self._score_session)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._config.host, self._config.port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            await self._end_dump()
            raise ConfigError(
                f"the gateway cannot listen at {self._config.host}:{self._config.port}: {error.strerror}",
                fix="give a free port, or 0 for any",
            ) from error
        host, port = runner.addresses[0][:2]
        self._address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._runner = runner
        self._sweeper = asyncio.create_task(self._sweep(runner), name="areal-gateway")

    async def _stop(self) -> None:
        self._address = ""
        for session in list(self._sessions.values()):
            session.state = "closed"
        self._sessions.clear()
        self._ended.clear()
        self._unscored.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        await self._end_dump()

    async def _end_dump(self) -> None:
        if self._dump is not None:
            dump, self._dump = self._dump, None
            await asyncio.to_thread(dump.close)

    async def _sweep(self, runner: web.AppRunner) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._config.header_seconds / 4))
            for session in self._sessions.values():
                session.check_clock()
            for name in [name for name, session in self._unscored.items() if not session.awaits_reward]:
                del self._unscored[name]
            if runner.server is not None:
                self._clock.close_late(runner.server.connections)

    # ---- who asks

    def _guarded_host(self, request: web.Request) -> bool:
        """Return whether the Host header is ours: a name that an attacker lets point here is not."""
        try:
            host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return False
        return host in _LOCAL_NAMES or host == self._config.host or self._config.allow_remote

    @property
    def _guarded(self) -> Any:
        from aiohttp import web

        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            try:
                if not self._guarded_host(request):
                    raise RefusedRequestError("auth", "the Host header is not this server's")
                with self._clock.working(request.protocol):
                    return await handler(request)
            except web.HTTPRequestEntityTooLarge:
                limit = self._config.max_body_bytes
                return _refused(request, RefusedRequestError("too_large", f"the body has more than {limit} bytes"))
            except web.HTTPException as error:
                if error.status not in (404, 405):
                    raise
                return _refused(request, RefusedRequestError("missing", f"there is no {request.method} {request.path}"))
            except RefusedRequestError as error:
                return _refused(request, error)
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("a request to the gateway failed")
                return _refused(request, RefusedRequestError("failed", "internal error; the log of the run has it"))

        return guard

    def _session(self, request: web.Request) -> Session:
        name = _key_digest(_key_of(request))
        found = self._sessions.get(name)
        # The table is looked up by a digest; the keys themselves are compared in constant time.
        if name in self._ended:
            raise RefusedRequestError("closed", "this session is closed: its episode is over")
        if found is None or not hmac.compare_digest(_key_digest(found.key), name):
            raise RefusedRequestError("auth", "the key is missing, wrong, or of a session that is over")
        return found

    def _require_admin(self, request: web.Request) -> None:
        given = _key_of(request).encode()
        if not self._admin_key or not hmac.compare_digest(given, self._admin_key.encode()):
            raise RefusedRequestError("auth", "this needs the admin key")

    # ---- answers

    def _answers(self, dialect: Dialect) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = self._session(request)
            with session.working(generates=True):
                body = read_json(await self._body(request))
                wanted = dialect.parse(body)
                reply_id = secrets.token_hex(12)
                work = asyncio.ensure_future(session.answer(wanted, reply_id))
                sent = False
                try:
                    send = self._stream if wanted.stream else self._send
                    response, sent = await send(request, dialect, wanted, work, reply_id)
                    return response
                finally:
                    await _settle(session, work, delivered=sent)
                    if self._dump is not None:
                        record = {"path": request.path, "request": body, **_outcome(work), "delivered": sent}
                        self._dump.write(session.name, record)

        return handle

    async def _send(
        self, request: web.Request, dialect: Dialect, wanted: AnswerRequest, work: asyncio.Future[Reply], reply_id: str
    ) -> tuple[web.StreamResponse, bool]:
        from aiohttp import web

        del wanted, reply_id
        response = web.json_response(dialect.document(await asyncio.shield(work)))
        try:
            await response.prepare(request)
            await response.write_eof()
        except _DEPARTED:
            return response, False
        return response, True

    async def _stream(
        self, request: web.Request, dialect: Dialect, wanted: AnswerRequest, work: asyncio.Future[Reply], reply_id: str
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer as events once it is complete; signs of life before."""
        from aiohttp import web

        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        alive = 0
        try:
            while not (await asyncio.wait({work}, timeout=self._config.keep_alive_seconds))[0]:
                if not alive:
                    await stream.prepare(request)
                await stream.write(dialect.keep_alive(wanted, reply_id, number=alive))
                alive += 1
            try:
                data = b"".join(dialect.events(work.result(), wanted, after=alive))
            except RefusedRequestError as error:
                if not alive:
                    raise
                data = dialect.refusal_event(error)
            if not alive:
                await stream.prepare(request)
            await stream.write(data)
            await stream.write_eof()
        except _DEPARTED:
            return stream, False
        return stream, work.exception() is None

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        session = self._session(request)
        with session.working(generates=False):
            wanted = messages.parse(read_json(await self._body(request)))
            return web.json_response({"input_tokens": await session.count(wanted)})

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._config.body_seconds):
                return await request.read()
        except TimeoutError:
            seconds = self._config.body_seconds
            raise RefusedRequestError("invalid", f"the body did not arrive within {seconds:g} s") from None

    async def _models(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        session = self._session(request)
        name = request.match_info.get("model", self._config.model_name)
        model = {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "areal",
            "context_length": session.max_leaf_tokens or None,
            "max_model_len": session.max_leaf_tokens or None,
            "history": self._config.history,
            "tool_choice": "required and named tools are accepted, and not enforced",
        }
        if "model" in request.match_info:
            return web.json_response(model)
        return web.json_response(
            {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
        )

    # ---- rewards and sessions

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        unscored = self._unscored.get(_key_digest(_key_of(request)))
        session = unscored if unscored is not None else self._session(request)
        if not session.may_score:
            raise RefusedRequestError("closed", "this session is scored by its run, not with its own key")
        if unscored is not None:
            return await self._scored(request, session)
        with session.working(generates=False):
            return await self._scored(request, session)

    async def _score_session(self, request: web.Request) -> web.StreamResponse:
        self._require_admin(request)
        name = request.match_info["name"]
        known = [*self._sessions.values(), *self._unscored.values()]
        session = next((one for one in known if one.name == name), None)
        if session is None:
            raise RefusedRequestError("missing", "there is no such session, or its reward is due no more")
        return await self._scored(request, session)

    async def _scored(self, request: web.Request, session: Session) -> web.StreamResponse:
        from aiohttp import web

        body = read_json(await self._body(request))
        components = body.get("components") or {}
        try:
            if not isinstance(components, dict):
                raise UsageError("components is not an object")
            checked = {str(name): float(value) for name, value in components.items()}
            if "reward" in body:
                session.set_reward(body["reward"], str(body.get("answer") or ""))
        except (UsageError, TypeError, ValueError) as error:
            raise RefusedRequestError("invalid", str(error), param="reward") from error
        session.components |= checked
        if body.get("final"):
            session.end_scoring()
        return web.json_response({"reward": session.reward, "components": session.components})

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        return web.json_response(session_facts(self._session(request)))

    async def _open_session(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        self._require_admin(request)
        if self._on_open is None:
            raise RefusedRequestError("missing", "sessions of this gateway are opened by its run")
        session = self._on_open()
        told = {} if session.row is None else {"row": dict(session.row)}
        return web.json_response({**session_facts(session), "key": session.key, **told}, dumps=_dumps)

    async def _close_session(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        self._require_admin(request)
        name = request.match_info["name"]
        session = next((one for one in self._sessions.values() if one.name == name), None)
        if session is None:
            raise RefusedRequestError("missing", "there is no such session")
        await self.close(session)
        return web.json_response(session_facts(session))


def session_facts(session: Session) -> dict[str, Any]:
    """Return what a session is and did, without content and key, as JSON values."""
    return {
        "name": session.name,
        "state": session.state,
        "limit_hit": session.limit_hit or None,
        "openai_base_url": session.urls.openai,
        "anthropic_base_url": session.urls.anthropic,
        "reward": session.reward,
        "answers": [
            {
                "id": answer.id,
                "parent": answer.parent.id if answer.parent is not None else None,
                "continues_by": answer.how,
                "reason": answer.reason or None,
                "tokens": len(answer.output),
                "delivered": answer.delivered,
                "reward": answer.reward,
            }
            for answer in session.answers
        ],
        "statistics": session.statistics(),
    }


_DIALECTS: Final[dict[str, Any]] = {
    "/v1/chat/completions": chat,
    "/v1/messages": messages,
    "/v1/responses": responses,
}


async def _settle(session: Session, work: asyncio.Future[Reply], *, delivered: bool) -> None:
    """Note what became of an answer; one that is still generated for a client that has gone is aborted."""
    if not work.done():
        session.counts["abandoned"] += 1
        work.cancel()
        await asyncio.wait({work})
    if work.cancelled() or work.exception() is not None:
        return
    if delivered:
        session.note_delivered(work.result())
    else:
        session.note_lost(work.result())


def _outcome(work: asyncio.Future[Reply]) -> dict[str, Any]:
    """Return what became of a request, with its content, as JSON values."""
    found: dict[str, Any] = {"time": time.time()}
    if work.cancelled():
        return {**found, "refused": "the client has gone"}
    if (error := work.exception()) is not None:
        return {**found, "refused": str(error)}
    return {
        **found,
        "answers": [
            {
                "id": choice.answer.id,
                "continues_by": choice.answer.how,
                "reason": choice.answer.reason or None,
                "text": choice.answer.raw,
                "stop_reason": choice.answer.stop_reason.value,
            }
            for choice in work.result().choices
        ],
    }


def _refused(request: web.Request, error: RefusedRequestError) -> web.StreamResponse:
    from aiohttp import web

    path = request.path
    dialect: Any = messages if "/v1/messages" in path or "x-api-key" in request.headers else chat
    status, body = dialect.refusal(error)
    return web.json_response(body, status=status)


def _key_of(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key", "")


def _key_digest(key: str) -> bytes:
    return sha256(key.encode(errors="replace")).digest()


def _dumps(value: Any) -> str:
    """Return JSON; what rows hold beside JSON values becomes text."""
    return json.dumps(value, default=str)


async def _health(request: web.Request) -> web.StreamResponse:
    from aiohttp import web

    del request
    return web.json_response({"status": "ok"})
