"""One episode: run the workflow, retry what can be retried, and turn every failure into a typed fault.

What no episode of the run can survive is no fault of an episode: a UsageError (a reward that cannot be imported, stop
strings without a tokenizer) gets out and ends the run with its own message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from areal.api import Fault, FaultError, FaultKind, Provenance, Trajectory, UsageError
from areal.infra.rollout.interruptible import EpisodeEngine, EpisodeProgress
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import InferenceEngine, RolloutWorkflow

logger = getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_MAX_REMEMBERED_MESSAGES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeJob:
    """What to run."""

    stream: str
    """Which family of seeds: "train" or "eval"; evaluation must never shift the randomness of training."""
    ordinal: int
    sample_index: int
    data: Mapping[str, Any]
    admitted_version: int
    row_index: int = -1
    progress: EpisodeProgress = field(default_factory=EpisodeProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOutcome:
    """What came of it."""

    trajectories: tuple[Trajectory, ...] = ()
    """Empty when the episode was lost or rejected."""
    faults: tuple[Fault, ...] = ()
    """One per failed attempt."""
    rejected: bool = False
    """The workflow returned None, or no trajectory: on purpose, not a fault."""


class EpisodeRunner:
    """Runs episodes on one engine. Seeds depend on (stream, run seed, ordinal, sample, attempt, call) only."""

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        seed: int,
        max_retries: int,
        dataset_name: str = "",
        workflow_name: str = "",
        engine_name: str = "",
    ) -> None:
        self._engine, self._seed, self._max_retries = engine, seed, max_retries
        self._names = {"dataset": dataset_name, "workflow": workflow_name, "engine": engine_name}
        self._logged: set[str] = set()

    async def run(self, workflow: RolloutWorkflow, job: EpisodeJob) -> EpisodeOutcome:
        """Run to the end. Only cancellation and UsageError get out as exceptions."""
        faults: list[Fault] = []
        for attempt in range(self._max_retries + 1):
            try:
                trajectories = await self._attempt(workflow, job, attempt)
            except FaultError as error:
                faults.append(Fault(kind=error.kind, message=error.message, attempt=attempt))
                if not error.kind.retryable:
                    break
                if attempt < self._max_retries:
                    job.progress.note(f"pausing after {error.kind.value}")
                    await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 4**attempt, _LONGEST_PAUSE_SECONDS))
            else:
                return EpisodeOutcome(trajectories=trajectories, faults=tuple(faults), rejected=not trajectories)
        return EpisodeOutcome(faults=tuple(faults))

    async def _attempt(self, workflow: RolloutWorkflow, job: EpisodeJob, attempt: int) -> tuple[Trajectory, ...]:
        engine = EpisodeEngine(
            self._engine,
            seed_parts=(job.stream, self._seed, job.ordinal, job.sample_index, attempt),
            oldest_version=job.admitted_version,
            progress=job.progress,
        )
        job.progress.note(f"attempt {attempt}")
        try:
            result = await workflow.arun_episode(engine, job.data)
            return self._stamp(result, job, attempt)
        except (FaultError, UsageError):
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside the workflow was cancelled and nobody there took care of it.
            message = f"{type(workflow).__name__} let a CancelledError escape"
            raise FaultError(FaultKind.WORKFLOW_RAISED, message) from error
        except Exception as error:  # an untyped exception is a bug of user code: counted, shown, not retried
            self._log_once(workflow, error)
            message = f"{type(workflow).__name__} raised {type(error).__name__}: {error}"
            raise FaultError(FaultKind.WORKFLOW_RAISED, message) from error

    def _stamp(self, result: object, job: EpisodeJob, attempt: int) -> tuple[Trajectory, ...]:
        if result is None:
            return ()
        trajectories = tuple(result) if isinstance(result, Sequence) else (result,)
        for trajectory in trajectories:
            if not isinstance(trajectory, Trajectory):
                raise TypeError(
                    f"arun_episode returned a {type(trajectory).__name__}, expected Trajectory, several, or None"
                )
            if trajectory.num_sampled and trajectory.head_version < job.admitted_version:
                raise ValueError(
                    f"a trajectory has a token of version {trajectory.head_version}, older than the admission of its "
                    f"prompt at {job.admitted_version}; does the workflow keep state between episodes?"
                )
        return tuple(
            trajectory.stamped(
                group_id=job.ordinal,
                sample_index=job.sample_index,
                provenance=Provenance(
                    **self._names, row=job.row_index, attempt=attempt, extra=trajectory.provenance.extra
                ),
            )
            for trajectory in trajectories
        )

    def _log_once(self, workflow: RolloutWorkflow, error: Exception) -> None:
        key = f"{type(error).__name__}: {error}"
        if key in self._logged or len(self._logged) >= _MAX_REMEMBERED_MESSAGES:
            return
        self._logged.add(key)
        logger.error(
            "workflow %s raised; further episodes with this error are only counted",
            type(workflow).__name__,
            exc_info=error,
        )
