"""Environments of gymnasium, for policies that read and write text.

    environment: gymnasium
    environment_options: {id: FrozenLake-v1, observe: my_games:see, act: my_games:move}

Observations and actions of gymnasium are numbers and arrays, so both ways are functions of yours:
`observe(observation, info) -> str`, the text that the policy reads, and `act(text, action_space) -> action`, which
raises ValueError for a text that names none. Its message is what the policy reads then, and no step is taken; nor is
one for an action outside of the action space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import StepResult, TurnObservation, load
from areal.environment.adapters import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import AssistantTurn


class GymnasiumEnvironments:
    """Makes episodes of one registered environment."""

    def __init__(
        self,
        id: str,
        *,
        observe: str,
        act: str,
        make_options: Mapping[str, Any] | None = None,
    ) -> None:
        """id: as in `gymnasium.make`; make_options: its other arguments. observe, act: "module:function"."""
        self._gymnasium = require("gymnasium")
        self._id, self._make_options = id, dict(make_options or {})
        self._observe, self._act = load("observe", observe, {}), load("act", act, {})

    def create(self) -> GymnasiumEpisode:
        """Return an environment of its own."""
        return GymnasiumEpisode(self._gymnasium.make(self._id, **self._make_options), self._observe, self._act)


class GymnasiumEpisode:
    """One environment of gymnasium."""

    def __init__(self, environment: Any, observe: Any, act: Any) -> None:
        self._environment, self._observe, self._act = environment, observe, act
        self._is_open, self._is_closed = False, False

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """See `areal.api.Environment`. The row is not used."""
        del row
        observation, info = self._environment.reset(seed=seed)
        self._is_open = True
        return self._shown(str(self._observe(observation, info)))

    async def step(self, answer: AssistantTurn) -> StepResult:
        """See `areal.api.Environment`. The text of a turn is its action."""
        if not self._is_open:
            raise RuntimeError("step() after the end of the episode")
        space = self._environment.action_space
        try:
            action = self._act(answer.text, space)
        except ValueError as error:
            return StepResult(observation=self._shown(f"error: {error}"))
        # Some spaces answer an action outside with an exception, some with nonsense.
        if not space.contains(action):
            return StepResult(observation=self._shown(f"error: {action!r:.80} is not one of {space}"))
        observation, reward, terminated, truncated, info = self._environment.step(action)
        self._is_open = not (terminated or truncated)
        return StepResult(
            observation=self._shown(str(self._observe(observation, info))),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
        )

    async def close(self) -> None:
        """See `areal.api.Environment`."""
        self._is_open = False
        if not self._is_closed:
            self._is_closed = True
            self._environment.close()

    def _shown(self, text: str) -> TurnObservation:
        return TurnObservation(messages=({"role": "user", "content": text},))
