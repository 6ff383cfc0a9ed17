"""Slots for environments: one episode each, with time limits, typed faults and a close that always runs.

    pool = EnvironmentPool("my_package.maze:Maze", {"size": 5}, HostConfig(kind="subprocess"))
    async with pool.episode() as environment:
        observation = await environment.reset(row, seed)
        result = await environment.step(turn)

What an environment raises is FaultError(ENVIRONMENT_FAILED), what takes too long is ENVIRONMENT_TIMEOUT; both are
retried with a new environment, and neither is ever a reward. Only a UsageError gets out as it is and ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from areal.api import FaultError, FaultKind, UsageError
from areal.environment.http_host import HttpEnvironments
from areal.environment.registry import create_factory
from areal.environment.subprocess_host import EnvironmentProcess
from areal.environment.watchdog import LoopWatchdog
from areal.environment.wire import checked_observation, checked_result
from areal.utils import stats
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from areal.api import AssistantTurn, Environment, StepResult, TurnObservation
    from areal.environment.config import HostConfig

logger = getLogger(__name__)

_T = TypeVar("_T")


class EnvironmentHost(Protocol):
    """Opens environments somewhere, and ends them."""

    async def claim(self) -> Callable[[], Awaitable[Environment]]:
        """Wait until an environment may begin, and return what opens it. Not limited: a host has its own limits.

        Raises FaultError when it has waited too long, or lost its server.
        """
        ...

    async def release(self, environment: Environment, *, broken: bool) -> bool:
        """End it, within a limit; broken: it failed. Returns whether nothing of it is left."""
        ...


class HostedEnvironment:
    """The environment of one episode: each call has its time limit, and what goes wrong is a fault."""

    def __init__(self, environment: Environment, name: str, config: HostConfig) -> None:
        self._environment, self._name, self._config = environment, name, config
        self.broken = False
        """Whether a call failed or was given up: it must not serve another one."""
        self.seconds = 0.0
        """Spent in calls so far."""

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """Begin the episode. Raises FaultError."""
        call = self._environment.reset(row, seed)
        return await self._guarded("reset", call, checked_observation, self._config.reset_seconds)

    async def step(self, answer: AssistantTurn) -> StepResult:
        """Take one turn. Raises FaultError."""
        call = self._environment.step(answer)
        return await self._guarded("step", call, checked_result, self._config.step_seconds)

    async def _guarded(self, method: str, call: Awaitable[_T], check: Callable[[object], _T], seconds: float) -> _T:
        started, finished = monotonic(), False
        try:
            found = await guarded(self._name, method, call, seconds)
            try:
                found = check(found)
            except (AttributeError, TypeError, ValueError) as error:
                raise _failed(self._name, method, error) from error
            finished = True
        finally:
            self.broken |= not finished
            self.seconds += monotonic() - started
        return found


async def guarded(name: str, method: str, call: Awaitable[_T], seconds: float) -> _T:
    """Await a call of environment `name` within its limit. Raises FaultError, or UsageError as it is."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except (FaultError, UsageError):
        raise
    except TimeoutError as error:
        if not limit.expired():
            raise _failed(name, method, error) from error
        message = f"environment {name!r}: {method}() took more than {seconds:g} s"
        raise FaultError(FaultKind.ENVIRONMENT_TIMEOUT, message) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, method, error) from error


def _failed(name: str, method: str, error: BaseException) -> FaultError:
    message = f"environment {name!r}: {method}(): {type(error).__name__}: {error}"
    return FaultError(FaultKind.ENVIRONMENT_FAILED, message)


class EnvironmentPool:
    """At most `max_environments` episodes at once, on one host. Shared by all episodes of a workflow."""

    def __init__(self, name: str, options: Mapping[str, Any], config: HostConfig) -> None:
        """name: of the registry, or an importable path. Raises ConfigError or RegistryError when it cannot be built,
        with kind subprocess when the first episode begins.
        """
        self._name, self._config = name, config
        self._host = _host(name, options, config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(config.max_environments)
        self.num_leaked = 0
        """Environments whose close failed or took too long, of the whole run."""

    async def prove(self) -> None:
        """Build the environment's factory where episodes will run. Raises ConfigError or RegistryError when it cannot
        be built, FaultError when its process fails or takes too long.
        """
        if isinstance(self._host, _InSubprocesses):
            await guarded(self._name, "load", self._host.prove(), self._config.reset_seconds)

    @contextlib.asynccontextmanager
    async def episode(self) -> AsyncIterator[HostedEnvironment]:
        """Wait for a slot, and give an environment for one episode; it is closed on every way out.

        Records (`areal.utils.stats`) environment/wait_seconds, environment/seconds and environment/leaked.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self._config.max_environments)
        waited_from = monotonic()
        async with self._slots:
            open_one = await self._host.claim()
            stats.record("environment/wait_seconds", monotonic() - waited_from)
            opened = await guarded(self._name, "create", open_one(), self._config.reset_seconds)
            environment = HostedEnvironment(opened, self._name, self._config)
            try:
                yield environment
            except BaseException:
                environment.broken = True
                raise
            finally:
                # Shielded: an episode that is given up must not leave half of an environment behind.
                clean = await asyncio.shield(self._ended(opened, broken=environment.broken))
                self.num_leaked += not clean
                stats.record("environment/seconds", environment.seconds)
                stats.record("environment/leaked", float(not clean))

    async def _ended(self, opened: Environment, *, broken: bool) -> bool:
        try:
            clean = await self._host.release(opened, broken=broken)
        except Exception:  # whatever closing raises must not hide how the episode ended
            logger.warning("environment %s: closing failed", self._name, exc_info=True)
            return False
        if not clean:
            logger.warning(
                "environment %s did not close within %g s and may be left behind",
                self._name,
                self._config.close_seconds,
            )
        return clean


class _InProcess:
    """Environments on the event loop itself."""

    def __init__(self, name: str, options: Mapping[str, Any], config: HostConfig) -> None:
        self._factory, self._config = create_factory(name, options), config
        self._watchdog = LoopWatchdog(name, block_seconds=config.block_seconds)

    async def claim(self) -> Callable[[], Awaitable[Environment]]:
        return self._open

    async def _open(self) -> Environment:
        return _WatchedEnvironment(self._factory.create(), self._watchdog)

    async def release(self, environment: Environment, *, broken: bool) -> bool:
        del broken
        try:
            async with asyncio.timeout(self._config.close_seconds):
                await environment.close()
        except TimeoutError:
            return False
        return True


class _WatchedEnvironment:
    """An environment whose stretches on the event loop are timed."""

    def __init__(self, environment: Environment, watchdog: LoopWatchdog) -> None:
        self._environment, self._watchdog = environment, watchdog

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        found: TurnObservation = await self._watchdog.watch(_coroutine(self._environment.reset(row, seed)), "reset")
        return found

    async def step(self, answer: AssistantTurn) -> StepResult:
        found: StepResult = await self._watchdog.watch(_coroutine(self._environment.step(answer)), "step")
        return found

    async def close(self) -> None:
        await self._watchdog.watch(_coroutine(self._environment.close()), "close")


class _InSubprocesses:
    """One process per slot; idle ones wait for the next episode."""

    def __init__(self, name: str, options: Mapping[str, Any], config: HostConfig) -> None:
        self._name, self._options, self._config = name, options, config
        self._idle: list[EnvironmentProcess] = []

    async def prove(self) -> None:
        """Start one process; the first episode gets it."""
        self._idle.append(await EnvironmentProcess.start(self._name, self._options, self._config))

    async def claim(self) -> Callable[[], Awaitable[Environment]]:
        return self._open

    async def _open(self) -> Environment:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            await process.kill()
        return await EnvironmentProcess.start(self._name, self._options, self._config)

    async def release(self, environment: Environment, *, broken: bool) -> bool:
        assert isinstance(environment, EnvironmentProcess)
        if not broken and self._config.reuse:
            self._idle.append(environment)
            return True
        if not broken:
            try:
                async with asyncio.timeout(self._config.close_seconds):
                    await environment.close()
            except (RuntimeError, TimeoutError) as error:
                logger.warning("environment %s: %r while closing; its process was killed", self._name, error)
                await environment.kill()
                return False
            self._idle.append(environment)
            return True
        await environment.kill()
        return True


def _host(name: str, options: Mapping[str, Any], config: HostConfig) -> EnvironmentHost:
    if config.kind == "http":
        return HttpEnvironments(name, options, config)
    return _InSubprocesses(name, options, config) if config.kind == "subprocess" else _InProcess(name, options, config)


async def _coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
