"""The reward of a run: every component in processes of its own, asked at once, weighted and added up. Those that are
immediate (`areal.reward.registry`) have no process.

    reward = RewardSet(resolve_components({"gsm8k": 1.0, "short": {"path": "my_rewards:short", "weight": 0.2}}))
    score = await reward("8*9=", "72", [5, 9], [11], answer="72")

A component that fails makes the whole fail, with a fault that names it: a sum without one of its parts would be a wrong
score, not a smaller one. All are waited for, so that each failure is counted.

Inside `recorded_scores`, every call leaves what each component said, how long it took and whether it failed: workflows
see one number, the metrics of a run see the parts.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from areal.api import FaultError, RewardUse
from areal.reward.components import weighted_sum
from areal.reward.immediate import ImmediateReward
from areal.reward.isolation import AsyncRewardWrapper
from areal.reward.registry import IMMEDIATE
from areal.utils import stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from areal.reward.components import RewardComponent
    from areal.reward.immediate import AnsweredCall
    from areal.reward.isolation import RewardCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRecord:
    """What one call of the reward of a run did. The keys are names of components."""

    score: float | None
    """The weighted sum; None when a component failed."""
    values: Mapping[str, float]
    """Of the components that answered."""
    seconds: Mapping[str, float]
    """How long each one ran; waiting for a process does not count."""

    @property
    def failed(self) -> tuple[str, ...]:
        """Components without a value."""
        return tuple(name for name in self.seconds if name not in self.values)


_records: ContextVar[list[ScoreRecord] | None] = ContextVar("areal_scores", default=None)


class recorded_scores:
    """Collect the calls of rewards made inside, here and in the tasks started here, in the order they ended."""

    __slots__ = ("_token",)

    def __enter__(self) -> list[ScoreRecord]:
        """Return what will hold them."""
        records: list[ScoreRecord] = []
        self._token = _records.set(records)
        return records

    def __exit__(self, *_: object) -> None:
        """Collect no more."""
        _records.reset(self._token)


def components_of(records: Sequence[ScoreRecord], reward: float) -> Mapping[str, float]:
    """Return the values behind the reward of a trajectory: of the last call that gave this score, else of the last one
    that gave any, as of a workflow that discounts it. Empty when none did.
    """
    scored = [record for record in records if record.score is not None]
    exact = [record for record in scored if record.score == reward]
    return (exact or scored)[-1].values if scored else {}


def uses_of(records: Iterable[ScoreRecord]) -> dict[str, RewardUse]:
    """Return calls, failures and seconds of each component."""
    found: dict[str, RewardUse] = {}
    for record in records:
        for name, seconds in record.seconds.items():
            use = RewardUse(calls=1, failures=int(name not in record.values), seconds=seconds)
            found[name] = found[name] + use if name in found else use
    return found


class RewardSet:
    """An awaitable reward made of components. Safe to use from several threads and event loops at once."""

    def __init__(
        self,
        components: Sequence[RewardComponent],
        *,
        timeout_seconds: float = 15.0,
        max_workers: int = 1,
        memory_limit_mb: int | None = None,
    ) -> None:
        """timeout_seconds: wall time of one call of one component. max_workers: processes of each component.

        Raises as `AsyncRewardWrapper`.
        """
        self.components = tuple(components)
        self._wrappers: list[Any] = [
            ImmediateReward(component.reward, name=component.place, options=component.options)
            if isinstance(component.reward, str) and component.reward in IMMEDIATE
            else AsyncRewardWrapper(
                component.reward,
                name=component.place,
                options=component.options,
                timeout_seconds=timeout_seconds,
                max_workers=max_workers,
                memory_limit_mb=memory_limit_mb,
            )
            for component in self.components
        ]

    async def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], /, **data: Any
    ) -> float:
        """Return the weighted sum for one completion; arguments as in `areal.api.RewardFunction`.

        Raises the FaultError of a component that failed, ConfigError or RegistryError when one cannot be loaded.
        """
        calls = [wrapper.submit(prompt, completions, prompt_ids, completion_ids, data) for wrapper in self._wrappers]
        results = await self._answers(calls)
        values = self._values(results)
        score = weighted_sum(self.components, values) if len(values) == len(results) else None
        records = _records.get()
        if records is not None:
            seconds = {part.name: call.seconds for part, call in zip(self.components, calls, strict=True)}
            records.append(ScoreRecord(score=score, values=values, seconds=seconds))
        if score is None:
            raise _chosen([result for result in results if isinstance(result, BaseException)])
        for call in calls:
            stats.merge(call.recorded)
        return score

    def start(self) -> None:
        """Start all workers now and return when every component is imported.

        Raises ConfigError or RegistryError when one cannot be.
        """
        for wrapper in self._wrappers:
            wrapper.start()

    def close(self) -> None:
        """Kill the workers; calls still waiting fail. Idempotent."""
        for wrapper in self._wrappers:
            wrapper.close()

    async def _answers(self, calls: Sequence[RewardCall | AnsweredCall]) -> Sequence[float | BaseException]:
        """Return what each component answered or raised."""
        if len(calls) != 1:
            answers = (wrapper.answer(call) for wrapper, call in zip(self._wrappers, calls, strict=True))
            return await asyncio.gather(*answers, return_exceptions=True)
        # The usual case, without a task and its turns of the loop for every sample.
        try:
            return [await self._wrappers[0].answer(calls[0])]
        except Exception as error:  # noqa: BLE001 - as `gather`: what it was is looked at when it is recorded
            return [error]

    def _values(self, results: Sequence[float | BaseException]) -> dict[str, float]:
        pairs = zip(self.components, results, strict=True)
        return {part.name: result for part, result in pairs if not isinstance(result, BaseException)}


def _chosen(errors: Sequence[BaseException]) -> BaseException:
    """Return the error to raise: what ends the run first, then a fault that no retry can mend, with all messages."""
    faults = [error for error in errors if isinstance(error, FaultError)]
    others = [error for error in errors if not isinstance(error, FaultError)]
    if others:
        return others[0]
    kind = next((fault.kind for fault in faults if not fault.kind.retryable), faults[0].kind)
    return faults[0] if len(faults) == 1 else FaultError(kind, "; ".join(fault.message for fault in faults))
