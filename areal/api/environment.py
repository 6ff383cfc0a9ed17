"""Contract of an environment: what an episode talks to, turn by turn, and what it is worth.

    factory = load("environment", "my_package.maze:Maze", {})(size=5)
    environment = factory.create()
    observation = await environment.reset(row, seed=7)
    result = await environment.step(AssistantTurn(text="north"))
    await environment.close()

An environment knows nothing of models, tokens or other episodes. What the policy does wrong (an invalid action, an
unknown tool) it answers with an observation; what it raises is its own failure, and never becomes a reward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnObservation:
    """What the policy sees next."""

    messages: Sequence[Mapping[str, Any]]
    """Chat messages, {"role": "user", "content": "..."}; a "tool" message answers the calls of the turn before it, one
    each, in their order. The first observation of an episode is its prompt; a later one may be empty when the episode
    is over."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Tools of the episode, {"name": ..., "description": ..., "parameters": JSON schema}; of the first observation
    only."""
    images: Sequence[Any] = ()
    """For policies that see: files of images as bytes or base64 text, one for each "<image>" in the messages, in order.
    The workflow `environment` reads them with workflow_options.processor, and refuses them without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came of one turn."""

    observation: TurnObservation
    reward: float = 0.0
    """Of the turn that was answered, a finite number."""
    terminated: bool = False
    """The episode is over: nothing is left to do."""
    truncated: bool = False
    """The episode was cut off, by a limit of the environment."""
    info: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the metrics; never used for training."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the reward is a finite number."""
        number = isinstance(self.reward, (bool, int, float))
        if not number or not math.isfinite(self.reward):
            raise ValueError(f"step result: reward is {self.reward!r}, expected a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCall:
    """One call of a tool, as the policy wrote it."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """Unique in its episode, e.g. "call-3-0"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """One turn of the policy."""

    text: str
    """All it wrote, without the token that ended it."""
    reasoning: str = ""
    """What stood between <think> and </think>, for templates that have it."""
    calls: Sequence[ActionCall] = ()
    """Its calls of tools, in order; their names are among those offered."""


@runtime_checkable
class Environment(Protocol):
    """One instance serves one episode at a time: reset, step, step, ..., close.

    One whose class has `resets_fully = True` promises that after `reset` nothing is left of an earlier episode, ended
    or not: with `host.reuse` it serves several, without a close in between.
    """

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """Begin an episode on a dataset row. Equal rows and seeds give equal observations, to the byte.

        seed: 0 <= seed < 2**63, equal for all samples of a prompt, so that they face the same task.
        """
        ...

    async def step(self, answer: AssistantTurn) -> StepResult:
        """Take one turn of the policy. Raises when the episode is over already."""
        ...

    async def close(self) -> None:
        """Free everything. Idempotent, at any time, also when `reset` was never called or failed."""
        ...


class EnvironmentFactory(Protocol):
    """Called once with the options of the configuration; makes an environment for each episode."""

    def create(self) -> Environment:
        """Return a new environment. Cheap: what is expensive belongs into `reset`."""
        ...
