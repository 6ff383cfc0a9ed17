"""What the trainer gets from one call: the prompts to train on, and what it cost to get them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal.infra.metrics import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import PromptGroup, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """Exactly `batch_size` prompts, ascending by ordinal, none admitted more than the bound before `version`."""

    groups: tuple[PromptGroup, ...]
    version: int
    """Version of the weights that this batch is to be trained on."""
    wait_seconds: float
    """How long the trainer waited for it."""
    dropped: Mapping[str, int]
    """Prompts dropped since the last batch, by reason."""
    faults: Mapping[str, int]
    """Failed attempts at episodes since the last batch, by kind, successful retries included."""
    interruptions: int
    """Generations that were cut and continued since the last batch."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Of all prompts, in order."""
        return tuple(trajectory for group in self.groups for trajectory in group.trajectories)

    @property
    def staleness(self) -> Mapping[int, int]:
        """Prompts by age: versions between admission and training, ascending."""
        ages = sorted(self.version - group.admitted_version for group in self.groups)
        return {age: ages.count(age) for age in dict.fromkeys(ages)}

    def metrics(self) -> dict[str, float]:
        """Plain numbers for the log, e.g. {"rollout/staleness_max": 1.0, "rollout/dropped/stale": 2.0}."""
        ages = [self.version - group.admitted_version for group in self.groups]
        token_ages = [
            self.version - version
            for trajectory in self.trajectories
            for version, sampled in zip(trajectory.versions, trajectory.loss_mask, strict=True)
            if sampled
        ]
        return {
            "rollout/wait_seconds": self.wait_seconds,
            "rollout/staleness_mean": sum(ages) / len(ages),
            "rollout/staleness_max": float(max(ages)),
            "rollout/token_staleness_mean": sum(token_ages) / len(token_ages) if token_ages else 0.0,
            "rollout/token_staleness_max": float(max(token_ages, default=0)),
            "rollout/interruptions": float(self.interruptions),
            **{f"rollout/dropped/{reason}": float(number) for reason, number in self.dropped.items()},
            **{f"{names.FAULT_PREFIX}{kind}": float(number) for kind, number in self.faults.items()},
        }
