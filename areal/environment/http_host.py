"""An environment on a server: `areal env serve`, or another program that speaks what `areal.environment.server` does.

    host: {kind: http, url: "http://127.0.0.1:8300"}

What is sent may be sent again when its answer is lost, since the server does nothing twice; a server that is gone is
fault environment_failed. While all its environments are in use, an episode waits. What comes back is read up to a
limit, and checked as strictly as what strangers say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, FaultError, FaultKind
from areal.environment import wire
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import aiohttp

    from areal.api import AssistantTurn, Environment, StepResult, TurnObservation
    from areal.environment.config import HostConfig

logger = getLogger(__name__)

_ATTEMPTS: Final = 4
"""Of one request whose answer is lost."""
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
"""Seconds between two attempts; doubled from the first to the longest."""
_PASSED_ON: Final = frozenset(
    {FaultKind.DATA_INVALID.value, FaultKind.ENVIRONMENT_FAILED.value, FaultKind.ENVIRONMENT_TIMEOUT.value}
)


class EnvironmentServerError(RuntimeError):
    """A server that is gone, or that answers what no environment server answers."""


class _NoCapacityError(Exception):
    """All environments of the server are in use."""


class HttpEnvironments:
    """The host of `areal.environment.pool` for environments on a server."""

    def __init__(self, name: str, options: Mapping[str, Any], config: HostConfig) -> None:
        """Refuse, with ConfigError, a machine without aiohttp, and a variable without key."""
        try:
            import aiohttp  # noqa: F401 - says at once what is missing
        except ModuleNotFoundError as error:
            raise ConfigError("host kind http needs aiohttp", fix="pip install 'areal[servers]'") from error
        self._name, self._options, self._config = name, dict(options), config
        self._key = os.environ.get(config.key_variable, "") if config.key_variable else ""
        if config.key_variable and len(self._key) < wire.MIN_KEY_CHARACTERS:
            raise ConfigError(
                f"the environment variable {config.key_variable} holds {len(self._key)} characters, expected a key of "
                f"at least {wire.MIN_KEY_CHARACTERS}",
                where="host.key_variable",
                fix="set it to the key that the server was started with",
            )
        self._known = False
        """Whether the server is known to serve this environment."""

    async def claim(self) -> Callable[[], Awaitable[Environment]]:
        """See `EnvironmentHost`. Raises FaultError, or ConfigError for a server of something else."""
        episode = _RemoteEpisode(self._config, self._key)
        try:
            if not self._known:
                self._check(await episode.call("GET", ""))
                self._known = True
            await episode.claim()
        except EnvironmentServerError as error:
            await episode.leave()
            message = f"environment {self._name!r}: {error}"
            raise FaultError(FaultKind.ENVIRONMENT_FAILED, message) from error
        except BaseException:
            await episode.leave()
            raise

        async def opened() -> Environment:
            return episode

        return opened

    async def release(self, environment: Environment, *, broken: bool) -> bool:
        """See `EnvironmentHost`."""
        del broken  # the server knows
        assert isinstance(environment, _RemoteEpisode)
        try:
            async with asyncio.timeout(self._config.close_seconds):
                await environment.close()
        except (EnvironmentServerError, FaultError, TimeoutError) as error:
            logger.warning("environment %s: %r while closing; its lease will run out", self._name, error)
            return False
        finally:
            await environment.leave()
        return True

    def _check(self, found: Any) -> None:
        """Raise ConfigError unless the server serves our environment with our options."""
        where = self._config.url
        protocol = found.get("protocol") if isinstance(found, dict) else None
        if protocol != wire.PROTOCOL:
            raise ConfigError(
                f"{where} is not an environment server of this version: protocol {protocol!r:.40}, expected "
                f"{wire.PROTOCOL}",
                where="host.url",
            )
        served, options = found.get("environment"), found.get("options")
        if served != self._name or options != self._options:
            raise ConfigError(
                f"{where} serves {served!r:.100} with options {options!r:.300}; the run asks for {self._name!r} with "
                f"{self._options!r:.300}",
                where="host.url",
                fix="start `areal env serve` with the environment and --options of the run, or change the run",
            )


class _RemoteEpisode:
    """One episode on a server, as an `Environment`."""

    def __init__(self, config: HostConfig, key: str) -> None:
        self._config, self._name = config, secrets.token_hex(16)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None
        self._num_steps = 0
        self._claimed = False
        self._renewal: asyncio.Task[None] | None = None

    async def claim(self) -> None:
        """Wait for one of the server's environments. Raises FaultError(ENVIRONMENT_TIMEOUT) after capacity_seconds."""
        waits = _waits()
        deadline = monotonic() + self._config.capacity_seconds
        while True:
            try:
                given = await self.call("POST", "/episodes", {"id": self._name})
                break
            except _NoCapacityError:
                if monotonic() > deadline:
                    message = (
                        f"all environments of {self._config.url} were in use for {self._config.capacity_seconds:g} s"
                    )
                    raise FaultError(FaultKind.ENVIRONMENT_TIMEOUT, message) from None
                await asyncio.sleep(min(next(waits), max(0.0, deadline - monotonic()) + 0.01))
        self._claimed = True
        lease = given.get("lease_seconds") if isinstance(given, dict) else None
        if isinstance(lease, (int, float)) and not isinstance(lease, bool) and lease > 0:
            self._renewal = asyncio.create_task(self._renew(lease / 3), name="areal-environment-lease")

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """See `areal.api.Environment`. Raises EnvironmentServerError, FaultError, ConfigError."""
        answer = await self._asked(0, "reset", {"row": dict(row), "seed": seed})
        return wire.observation_from_plain(answer["observation"])

    async def step(self, answer: AssistantTurn) -> StepResult:
        """See `areal.api.Environment`. Raises as `reset`."""
        self._num_steps += 1
        body = {"step": self._num_steps, "answer": wire.turn_to_plain(answer)}
        return wire.result_from_plain((await self._asked(self._num_steps, "step", body))["result"])

    async def close(self) -> None:
        """See `areal.api.Environment`."""
        if self._renewal is not None:
            self._renewal.cancel()
        if self._claimed:
            await self.call("DELETE", f"/episodes/{self._name}")
            self._claimed = False

    async def leave(self) -> None:
        """Let go of connections and tasks. Idempotent."""
        if self._renewal is not None:
            self._renewal.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a request, again when its answer is lost, and return the JSON of its answer; None for an empty one.

        Raises EnvironmentServerError, FaultError with what the server says went wrong, _NoCapacityError, ConfigError.
        """
        import aiohttp

        lost: Exception | None = None
        for wait, _ in zip(_waits(), range(_ATTEMPTS), strict=False):
            if lost is not None:
                await asyncio.sleep(wait)
            try:
                status, text = await self._request(method, path, body)
            except (aiohttp.ClientError, ConnectionError, OSError) as error:
                lost = error
                continue
            return self._read(status, text)
        reason = f"{type(lost).__name__}: {lost}"
        raise EnvironmentServerError(f"the server at {self._config.url} is lost ({reason})") from lost

    async def _request(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The limits of calls are those of the pool, and no proxy of the machine gets between.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                headers=self._headers,
                trust_env=False,
            )
        limit = self._config.max_answer_bytes
        async with self._session.request(
            method, self._config.url.rstrip("/") + (path or "/"), json=body, allow_redirects=False
        ) as response:
            found = bytearray()
            async for part in response.content.iter_chunked(1 << 16):
                found += part
                if len(found) > limit:
                    response.close()
                    raise EnvironmentServerError(f"an answer of more than {limit} bytes (host.max_answer_bytes)")
            return response.status, bytes(found)

    async def _asked(self, step: int, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a reset or step, which says itself what it answers."""
        answer = await self.call("POST", f"/episodes/{self._name}/{what}", body)
        if not isinstance(answer, dict) or answer.get("step") != step or isinstance(answer.get("step"), bool):
            said = answer.get("step") if isinstance(answer, dict) else answer
            raise EnvironmentServerError(f"the server answers step {said!r:.40}, but step {step} was asked for")
        return answer

    def _read(self, status: int, text: bytes) -> Any:
        try:
            found = wire.read_json(text) if text else None
        except ValueError as error:
            raise EnvironmentServerError(f"an answer with status {status} that is not JSON: {error}") from error
        if 200 <= status < 300:
            return found
        error_ = found.get("error") if isinstance(found, dict) else None
        kind = error_.get("kind") if isinstance(error_, dict) else None
        message = f"{error_.get('message')!s:.600}" if isinstance(error_, dict) else f"{text[:200]!r}"
        if kind == "capacity":
            raise _NoCapacityError
        if kind in _PASSED_ON:
            raise FaultError(FaultKind(kind), f"on {self._config.url}: {message}")
        if kind in {"unauthorized", "usage"}:
            raise ConfigError(f"{self._config.url}: {message}", where="host")
        raise EnvironmentServerError(f"status {status} ({kind}): {message}")

    async def _renew(self, seconds: float) -> None:
        """Tell the server that the episode is still wanted, while the policy thinks."""
        while True:
            await asyncio.sleep(seconds)
            with contextlib.suppress(EnvironmentServerError, FaultError, _NoCapacityError, ConfigError):
                await self.call("POST", f"/episodes/{self._name}/lease")


def _waits() -> Any:
    """Yield seconds to wait, each twice the last, spread so that many clients do not come at once."""
    seconds = _FIRST_WAIT
    while True:
        yield seconds * random.uniform(0.5, 1.0)
        seconds = min(2 * seconds, _LONGEST_WAIT)
