"""From the outcomes of a prompt's samples to a group that can be trained, or to the reason why there is none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from areal.api import PromptGroup
from areal.infra.rollout.episode import EpisodeJob, EpisodeOutcome, EpisodeRunner
from areal.infra.rollout.tally import REJECTED, ZERO_VARIANCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import RolloutWorkflow
    from areal.infra.rollout.config import RolloutConfig


@dataclass(slots=True, kw_only=True, eq=False)
class GroupRun:
    """The samples of one prompt while they are being produced."""

    ordinal: int
    admitted_version: int
    jobs: list[EpisodeJob] = field(default_factory=list)
    outcomes: dict[int, EpisodeOutcome] = field(default_factory=dict)
    """By sample index."""
    tasks: set[asyncio.Task[EpisodeOutcome]] = field(default_factory=set)
    started: float = field(default_factory=monotonic)

    @property
    def complete(self) -> bool:
        """Whether every sample has an outcome."""
        return len(self.outcomes) == len(self.jobs)

    def group(self) -> PromptGroup:
        """What survived, in order of the samples; possibly nothing."""
        outcomes = [self.outcomes[index] for index in sorted(self.outcomes)]
        return PromptGroup(
            ordinal=self.ordinal,
            admitted_version=self.admitted_version,
            trajectories=tuple(trajectory for outcome in outcomes for trajectory in outcome.trajectories),
            faults=tuple(fault for outcome in outcomes for fault in outcome.faults),
        )

    def drop_reason(self, config: RolloutConfig) -> str | None:
        """Why the whole prompt must go: the kind of its last fault, "rejected" or "zero_variance"; None to train it.

        A group that lost samples is never trained silently: what is lost correlates with what the policy did.
        """
        survivors = [outcome for outcome in self.outcomes.values() if outcome.trajectories]
        lost = [outcome for outcome in self.outcomes.values() if not outcome.trajectories and not outcome.rejected]
        if not survivors or len(survivors) < (config.min_group_size or config.group_size):
            return lost[-1].faults[-1].kind.value if lost else REJECTED
        rewards = {trajectory.reward for outcome in survivors for trajectory in outcome.trajectories}
        return ZERO_VARIANCE if config.filter_zero_variance and len(rewards) == 1 else None

    def describe(self) -> str:
        """For the watchdog: which samples are missing, and what they do."""
        now = monotonic()
        pending = [job for index, job in enumerate(self.jobs) if index not in self.outcomes]
        shown = ", ".join(
            f"sample {job.sample_index}: {job.progress.event} since {now - job.progress.since:.1f} s"
            for job in pending[:3]
        )
        more = f" and {len(pending) - 3} more" if len(pending) > 3 else ""
        age = f"started {now - self.started:.1f} s ago at version {self.admitted_version}"
        return f"prompt {self.ordinal}, {age}: {shown}{more}"


async def evaluate_rows(
    runner: EpisodeRunner,
    workflow: RolloutWorkflow,
    rows: Sequence[Mapping[str, Any]],
    *,
    group_size: int,
    version: int,
) -> list[PromptGroup]:
    """Run every row `group_size` times, outside the ledger; one group per row, in order, with whatever survived."""
    runs = [GroupRun(ordinal=index, admitted_version=version) for index in range(len(rows))]
    for run, row in zip(runs, rows, strict=True):
        for sample_index in range(group_size):
            job = EpisodeJob(
                stream="eval",
                ordinal=run.ordinal,
                sample_index=sample_index,
                data=row,
                admitted_version=version,
                row_index=run.ordinal,
            )
            run.jobs.append(job)
    jobs = [job for run in runs for job in run.jobs]
    outcomes = await asyncio.gather(*(runner.run(workflow, job) for job in jobs))
    for job, outcome in zip(jobs, outcomes, strict=True):
        runs[job.ordinal].outcomes[job.sample_index] = outcome
    return [run.group() for run in runs]
