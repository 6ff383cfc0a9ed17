"""Whether an environment keeps its contract: the same seed gives the same episode, episodes do not disturb each other.

    findings = await check_environment("my_package.maze:Maze", {"size": 5}, HostConfig(), answers=["north", "south"])

Every check plays the same short episodes with given answers, and compares what comes back to the byte. An answer that
the environment takes for invalid is as good as any: it must be answered with an observation, in the same way each time.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import AssistantTurn, FaultError
from areal.environment import wire
from areal.environment.pool import EnvironmentPool
from areal.environment.registry import create_factory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.environment.config import HostConfig
    from areal.environment.pool import HostedEnvironment

DEFAULT_ANSWERS: Final = ("1", "yes", "areal-probe")
_SHOWN_CHARACTERS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCheck:
    """What one check found."""

    name: str
    ok: bool
    detail: str = ""
    """What was seen, where it is not what was expected, or why nothing could be seen."""


async def check_environment(
    name: str,
    options: Mapping[str, Any],
    config: HostConfig,
    *,
    row: Mapping[str, Any] | None = None,
    seed: int = 0,
    answers: Sequence[str | AssistantTurn] = DEFAULT_ANSWERS,
) -> list[EnvironmentCheck]:
    """Play episodes and compare them. answers: the policy's turns, or their texts where they call no tools; repeated
    until an episode is over, at most ten times.

    Raises UsageError when the environment cannot be built. A failure of the environment is a result.
    """
    pool = EnvironmentPool(name, options, config)
    turns = [AssistantTurn(text=answer) if isinstance(answer, str) else answer for answer in answers]
    play = _Player(pool, dict(row or {}), turns * 10)
    results = []
    checks = {
        "equal_seeds": play.equal_seeds,
        "concurrent_episodes": play.concurrent_episodes,
        "step_after_end": play.step_after_end,
        "other_seed": play.other_seed,
    }
    for check, run in checks.items():
        try:
            ok, detail = await run(seed)
        except FaultError as error:
            ok, detail = False, error.message
        results.append(EnvironmentCheck(name=check, ok=ok, detail=detail))
    if config.kind == "process":
        results.append(await _closes(name, options, dict(row or {}), seed))
    leaks = f"{pool.num_leaked} environments did not close within {config.close_seconds:g} s" if pool.num_leaked else ""
    results.append(EnvironmentCheck(name="leaks", ok=not leaks, detail=leaks))
    return results


class _Player:
    """Plays episodes in one pool."""

    def __init__(self, pool: EnvironmentPool, row: Mapping[str, Any], answers: Sequence[AssistantTurn]) -> None:
        self._pool, self._row, self._answers = pool, row, answers

    async def equal_seeds(self, seed: int) -> tuple[bool, str]:
        first, second = await self._alone(seed), await self._alone(seed)
        return _compared(first, second, "two episodes with one seed")

    async def concurrent_episodes(self, seed: int) -> tuple[bool, str]:
        """Two episodes, turn about, against each of them alone."""
        expected = [await self._alone(seed), await self._alone(seed + 1)]
        async with AsyncExitStack() as stack:
            open_ = [await stack.enter_async_context(self._pool.episode()) for _ in range(2)]
            seen = [[_observed(await env.reset(self._row, seed + index))] for index, env in enumerate(open_)]
            ended = [False, False]
            for answer in self._answers:
                for index, environment in enumerate(open_):
                    if not ended[index]:
                        ended[index] = await _stepped(environment, answer, seen[index])
        for index in range(2):
            ok, detail = _compared(expected[index], seen[index], "an episode alone and beside another one")
            if not ok:
                return ok, detail
        return True, ""

    async def step_after_end(self, seed: int) -> tuple[bool, str]:
        async with self._pool.episode() as environment:
            await environment.reset(self._row, seed)
            for answer in self._answers:
                if await _stepped(environment, answer, []):
                    break
            else:
                return True, "not seen: no episode ended; give answers that end one"
            try:
                await environment.step(self._answers[0])
            except FaultError:
                return True, ""
        return False, "a step after the end of the episode was answered, expected an error"

    async def other_seed(self, seed: int) -> tuple[bool, str]:
        first, second = await self._alone(seed), await self._alone(seed + 1)
        return True, "" if first != second else "note: another seed gave the same episode"

    async def _alone(self, seed: int) -> list[str]:
        async with self._pool.episode() as environment:
            seen = [_observed(await environment.reset(self._row, seed))]
            for answer in self._answers:
                if await _stepped(environment, answer, seen):
                    break
        return seen


async def _stepped(environment: HostedEnvironment, answer: AssistantTurn, seen: list[str]) -> bool:
    """Take one turn and note what came back; returns whether the episode is over."""
    result = await environment.step(answer)
    seen.append(json.dumps(wire.result_to_plain(result), sort_keys=True))
    return result.terminated or result.truncated


def _observed(observation: Any) -> str:
    return json.dumps(wire.observation_to_plain(observation), sort_keys=True)


def _compared(first: list[str], second: list[str], what: str) -> tuple[bool, str]:
    if first == second:
        return True, ""
    place = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return False, f"{what} have {len(first)} and {len(second)} observations"
    where = "after reset" if place == 0 else f"after turn {place - 1}"
    return False, f"{what} differ {where}: {first[place][:_SHOWN_CHARACTERS]} / {second[place][:_SHOWN_CHARACTERS]}"


async def _closes(name: str, options: Mapping[str, Any], row: Mapping[str, Any], seed: int) -> EnvironmentCheck:
    """Close twice, and close what was never reset."""
    factory = create_factory(name, options)
    try:
        fresh = factory.create()
        await fresh.close()
        used = factory.create()
        await used.reset(row, seed)
        await used.close()
        await used.close()
    except Exception as error:  # noqa: BLE001 - whatever an environment raises is what the check is about
        return EnvironmentCheck(name="close", ok=False, detail=f"close() raised {type(error).__name__}: {error}")
    return EnvironmentCheck(name="close", ok=True)
