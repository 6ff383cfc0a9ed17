"""Contract of a rollout workflow: one async method that turns a dataset row into trajectories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api.engine import InferenceEngine
    from areal.api.records import Trajectory


class RolloutWorkflow(ABC):
    """One strategy for producing an episode. Instances are shared by all concurrent episodes: keep no per-episode
    state on self."""

    @abstractmethod
    async def arun_episode(
        self, engine: InferenceEngine, data: Mapping[str, Any]
    ) -> Trajectory | Sequence[Trajectory] | None:
        """Run one episode.

        engine: hands out tokens; requests cut by a weight update are continued before it returns, so
            `StopReason.ABORT` is never seen here. It seeds requests from (run seed, prompt, sample): leave
            `ModelRequest.seed` alone.
        data: one dataset row, e.g. {"messages": [{"role": "user", "content": "..."}], "answer": "72"}.

        Return one trajectory, several (an episode that branched), or None to reject the sample on purpose (counted).
        Raise FaultError for a failure of a known kind and UsageError to end the whole run; anything else is taken for a
        bug and ends as WORKFLOW_RAISED.
        Must not block the event loop: rewards run through `areal.reward.AsyncRewardWrapper`.
        """
