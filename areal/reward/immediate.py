"""Ask a reward of ours at once, in the process that needs the score (`areal.reward.registry.IMMEDIATE`).

To `areal.reward.scoring` it is what `AsyncRewardWrapper` is, with the same scores and faults, but that a row which
cannot be pickled is scored. Nothing waits, and no process competes for the cores with those that sample and train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError, FaultError, load
from areal.reward.answering import ask, recorded_in, result_of, with_options
from areal.reward.registry import REWARDS
from areal.utils import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.reward.answering import Outcome


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """One call, which has ended."""

    outcome: Outcome

    @property
    def seconds(self) -> float:
        """How long the reward ran."""
        seconds: float = self.outcome[1]
        return seconds

    @property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        """What the reward recorded (`areal.utils.stats`)."""
        return recorded_in(self.outcome)


class ImmediateReward:
    """A reward that is in `IMMEDIATE`."""

    def __init__(self, reward: str, *, options: Mapping[str, Any], name: str) -> None:
        """name: for messages."""
        self.name = name
        self._reward, self._options = reward, dict(options)
        self._function: Callable[..., Any] | None = None

    def submit(
        self,
        prompt: str,
        completions: str,
        prompt_ids: list[int],
        completion_ids: list[int],
        data: Mapping[str, Any],
    ) -> AnsweredCall:
        """Ask; see `AsyncRewardWrapper.submit`. Raises ConfigError for options that it does not take."""
        self.start()
        assert self._function is not None, "start loads it"
        with tracing.async_span("reward", reward=self.name):
            arguments = (prompt, completions, prompt_ids, completion_ids)
            return AnsweredCall(ask(self._function, lambda: (arguments, data)))

    async def answer(self, call: AnsweredCall) -> float:
        """Return the score. Raises FaultError as `AsyncRewardWrapper` does."""
        result = result_of(call.outcome, self.name)
        if isinstance(result, FaultError):
            raise result
        return result

    def start(self) -> None:
        """Load it. Raises ConfigError for options that it does not take."""
        if self._function is not None:
            return
        try:
            self._function = with_options(load("reward", self._reward, REWARDS), self._options)
        except TypeError as error:
            raise ConfigError(
                f"reward {self.name!r} cannot be loaded: TypeError: {error}",
                fix="mend the reward, or install what it imports",
            ) from error

    def close(self) -> None:
        """Do nothing: nothing runs."""
