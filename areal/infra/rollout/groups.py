"""Turn the outcomes of samples into groups and batches that can be trained, and count what went wrong.

A `GroupRun` collects the samples of one prompt; a `RolloutBatch` is what the trainer gets; a `FailureTally` counts
faults and drops, and ends a run that would otherwise spin; `LostRewards` ends one whose reward hangs or crashes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from areal.api import FaultKind, PromptGroup, RewardUse, RolloutError
from areal.infra.metrics import names
from areal.infra.metrics.samples import sample_metrics, use_metrics
from areal.infra.rollout.episode import EpisodeJob, EpisodeOutcome, EpisodeRunner
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from areal.api import Fault, RolloutWorkflow, Trajectory
    from areal.infra.rollout.config import RolloutConfig
    from areal.infra.rollout.schedule import Visit


logger = getLogger(__name__)

ZERO_VARIANCE = "zero_variance"
"""Drop reason: all samples have the same reward, and the run filters such prompts."""
REJECTED = "rejected"
"""Drop reason: the workflow returned None for too many samples."""
STALE = "stale"
"""Drop reason: too old to be trained, under consume="drop"."""
SURPLUS = "surplus"
"""Drop reason: the batch was complete without it, under consume="drop"."""
_NOTED_PER_KIND = 5
"""Faults of each kind that are logged with prompt and row; the others are only counted."""
_ON_PURPOSE = frozenset({ZERO_VARIANCE, REJECTED})
_BY_TIME = frozenset({STALE, SURPLUS})


_LOST: Final = (FaultKind.REWARD_TIMEOUT, FaultKind.REWARD_DIED)
_ANSWERED: Final = (FaultKind.REWARD_RAISED, FaultKind.REWARD_INVALID)
_FIRST_SAMPLES: Final = 4
"""Before anything was scored, this many samples are enough, unless they are of one odd row and the reward answered
for another one."""


def place_of(job: EpisodeJob, dataset: str = "") -> str:
    """`prompt 7, row 3 of dataset gsm8k, sample 0`, without what is unknown."""
    row = "" if job.row_index < 0 else f", row {job.row_index}"
    of = f" of dataset {dataset}" if row and dataset else ""
    return f"prompt {job.ordinal}{row}{of}, sample {job.sample_index}"


def added_uses(parts: Iterable[Mapping[str, RewardUse]]) -> dict[str, RewardUse]:
    """Return the calls of each reward component, all parts together."""
    found: dict[str, RewardUse] = {}
    for uses in parts:
        for name, use in uses.items():
            found[name] = found[name] + use if name in found else use
    return found


class FailureTally:
    """Counts of one run. `dropped`, `faults` and `reward_uses` hold what is new since the last `flush`."""

    def __init__(self, config: RolloutConfig, *, place: Callable[[EpisodeJob], str] = place_of) -> None:
        """place: a sample in words, with its row."""
        self._place = place
        self._max_failures = config.max_consecutive_failures
        self._max_filtered = config.max_filtered_batches * config.batch_size
        self._failures_in_row = 0
        self._filtered_in_row = 0
        self._last_message: dict[str, str] = {}
        self._total_faults: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.reward_uses: dict[str, RewardUse] = {}

    @property
    def total_faults(self) -> Mapping[str, int]:
        """Failed attempts of the whole run, by kind."""
        return self._total_faults

    def record_fault(self, fault: Fault, job: EpisodeJob) -> None:
        """Count a failed attempt. The first of each kind is shown at once, since a run may lose samples to its end
        unnoticed, and a few more are noted.
        """
        kind, seen = fault.kind.value, self._total_faults[fault.kind.value]
        where = self._place(job)
        row = None if job.row_index < 0 else job.row_index
        fields = {"fault": kind, "prompt": job.ordinal, "row": row, "detail": fault.message}
        # A workflow that raised has been logged with its traceback already.
        if not seen and fault.kind is not FaultKind.WORKFLOW_RAISED:
            message = "first fault of kind %s, at %s: %s (further ones are counted)"
            logger.warning(message, kind, where, fault.message, extra=fields)
        elif seen < _NOTED_PER_KIND:
            logger.info("fault of kind %s at %s: %s", kind, where, fault.message, extra=fields)
        self.faults[kind] += 1
        self._total_faults[kind] += 1
        self._last_message[kind] = f"{fault.message} (at {where})"

    def record_uses(self, uses: Mapping[str, RewardUse]) -> None:
        """Add the calls that the samples of a prompt made, by reward component."""
        self.reward_uses = added_uses([self.reward_uses, uses])

    def record_success(self) -> None:
        """Note that a prompt survived: nothing is "in a row" any more."""
        self._failures_in_row = self._filtered_in_row = 0

    def record_drop(self, reason: str) -> None:
        """Note that a prompt was dropped. Raises RolloutError when that was one too many in a row."""
        self.dropped[reason] += 1
        if reason in _ON_PURPOSE:
            self._filtered_in_row += 1
        elif reason not in _BY_TIME:
            self._failures_in_row += 1
        if self._failures_in_row >= self._max_failures:
            raise RolloutError(
                f"{self._failures_in_row} prompts in a row were dropped for faults (max_consecutive_failures = "
                f"{self._max_failures}). Failed attempts since the start, with the last message of each kind:\n"
                f"{self.table()}"
            )
        if self._filtered_in_row >= self._max_filtered:
            raise RolloutError(
                f"{self._filtered_in_row} prompts in a row were dropped on purpose, last for {reason!r} "
                f"(max_filtered_batches times batch_size = {self._max_filtered}). With zero_variance the task is too "
                f"easy or too hard for the policy, or the reward is constant; with rejected, workflows return None.\n"
                f"{self.table()}"
            )

    def table(self) -> str:
        """Return one line per kind of fault, most frequent first."""
        lines = [f"  {kind:<18} {n:>7}  {self._last_message[kind]}" for kind, n in self._total_faults.most_common()]
        return "\n".join(lines) or "  (no faults)"

    def flush(self) -> tuple[dict[str, int], dict[str, int], dict[str, RewardUse]]:
        """Return (dropped, faults, uses of rewards) since the last call."""
        window = dict(self.dropped), dict(self.faults), dict(self.reward_uses)
        self.dropped.clear()
        self.faults.clear()
        self.reward_uses.clear()
        return window

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "faults": dict(self._total_faults),
            "last_message": dict(self._last_message),
            "failures_in_row": self._failures_in_row,
            "filtered_in_row": self._filtered_in_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._total_faults = Counter({str(kind): int(number) for kind, number in state["faults"].items()})
        self._last_message = {str(kind): str(message) for kind, message in state["last_message"].items()}
        self._failures_in_row = int(state["failures_in_row"])
        self._filtered_in_row = int(state["filtered_in_row"])


class LostRewards:
    """Counts samples whose reward timed out or lost its process, and ends the run that has no others, while it still
    costs seconds.

    Every lost call costs the time limit, and with many samples waiting for few reward processes the prompts that would
    have to be dropped in a row are hours away. What counts here are samples, in the order in which their calls were
    lost, whatever prompt they belong to and however long they waited in the queue; a sample that is tried again counts
    once, and any sample that gets through starts the count anew.
    """

    def __init__(self, config: RolloutConfig, *, place: Callable[[EpisodeJob], str] | None = None) -> None:
        """place: a sample in words, with its row; None takes `place_of`."""
        self._limit = config.max_lost_rewards
        self._place = place or place_of
        self._scored = False
        self._answered: set[int] = set()
        """Prompts for which the reward returned something else than a score, or raised."""
        self._lost: dict[tuple[int, int], tuple[EpisodeJob, Fault]] = {}

    def note(self, job: EpisodeJob, fault: Fault | None) -> None:
        """Take in one attempt at a sample; None when it succeeded.

        Raises RolloutError when too many in a row were lost, naming reward, rows, seconds and exits.
        """
        if fault is None:
            self._scored = True
            self._lost.clear()
        elif fault.kind in _ANSWERED:
            self._answered.add(job.ordinal)
        elif fault.kind in _LOST:
            self._lost[job.ordinal, job.sample_index] = (job, fault)
            if len(self._lost) >= self._limit or (len(self._lost) >= _FIRST_SAMPLES and self._hopeless()):
                raise self._error()

    def _hopeless(self) -> bool:
        """Whether nothing was ever scored, and it is not just one row that the reward cannot take."""
        prompts = {ordinal for ordinal, _ in self._lost}
        return not self._scored and (len(prompts) > 1 or self._answered <= prompts)

    def _error(self) -> RolloutError:
        lost = list(self._lost.values())
        slow = sum(fault.kind is FaultKind.REWARD_TIMEOUT for _, fault in lost)
        counts = {"timed out": slow, "lost the process": len(lost) - slow}
        how = " and ".join(f"{number} {what}" for what, number in counts.items() if number)
        since = "in between" if self._scored else "since the start"
        lines = [f"  {self._place(job)}: {fault.message}" for job, fault in (lost[0], lost[-1])]
        return RolloutError(
            f"the reward of {len(lost)} samples in a row was lost ({how}) and no sample was scored {since}. The first "
            f"and the last:\n" + "\n".join(lines),
            where="reward",
            fix="call the reward on that row by itself; raise rollout.reward_timeout_seconds if it may take longer, "
            "rollout.max_lost_rewards if such answers are to be expected",
        )


def watch_of_evaluation(config: RolloutConfig, *, dataset: str = "") -> Callable[[EpisodeJob, Fault | None], None]:
    """Return what looks at every attempt of one evaluation: shows the first faults, raises RolloutError when the reward
    gives nothing. dataset: name of the rows, for messages.
    """
    place = partial(place_of, dataset=dataset)
    tally, lost = FailureTally(config, place=place), LostRewards(config, place=place)

    def note(job: EpisodeJob, fault: Fault | None) -> None:
        if fault is not None:
            tally.record_fault(fault, job)
        lost.note(job, fault)

    return note


@dataclass(slots=True, kw_only=True, eq=False)
class GroupRun:
    """The samples of one prompt while they are being produced."""

    ordinal: int
    admitted_version: int
    source: str = ""
    visit: Visit | None = None
    """The row in the schedule of the run; None in an evaluation."""
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
        """Return what survived, in order of the samples; possibly nothing."""
        outcomes = [self.outcomes[index] for index in sorted(self.outcomes)]
        return PromptGroup(
            ordinal=self.ordinal,
            admitted_version=self.admitted_version,
            source=self.source,
            trajectories=tuple(trajectory for outcome in outcomes for trajectory in outcome.trajectories),
            faults=tuple(fault for outcome in outcomes for fault in outcome.faults),
            reward_uses=added_uses(outcome.reward_uses for outcome in outcomes),
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
        turns = {
            tuple(tuple(sorted(item.turn_rewards.items())) for item in outcome.trajectories if item.turn_rewards)
            for outcome in survivors
        }
        return ZERO_VARIANCE if config.filter_zero_variance and len(rewards) == len(turns) == 1 else None

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
    stream: str,
) -> list[PromptGroup]:
    """Run every row `group_size` times, outside the ledger; one group per row, in order, with whatever survived."""
    runs = [GroupRun(ordinal=index, admitted_version=version) for index in range(len(rows))]
    for run, row in zip(runs, rows, strict=True):
        run.jobs.extend(evaluation_job(stream, run.ordinal, index, row, version) for index in range(group_size))

    def finished(job: EpisodeJob, outcome: EpisodeOutcome) -> None:
        runs[job.ordinal].outcomes[job.sample_index] = outcome

    await run_jobs(runner, workflow, [job for run in runs for job in run.jobs], finished)
    return [run.group() for run in runs]


def evaluation_job(stream: str, row: int, sample: int, data: Mapping[str, Any], version: int) -> EpisodeJob:
    """Return the job of one sample of an evaluation; its seeds depend on stream, row and sample alone."""
    return EpisodeJob(
        stream=stream, ordinal=row, sample_index=sample, data=data, admitted_version=version, row_index=row
    )


async def run_jobs(
    runner: EpisodeRunner,
    workflow: RolloutWorkflow,
    jobs: Iterable[EpisodeJob],
    finished: Callable[[EpisodeJob, EpisodeOutcome], None],
    *,
    at_once: int | None = None,
) -> None:
    """Run jobs, started in their order, and tell `finished` about each when it ends.

    at_once: most of them in flight, for more jobs than one wants tasks of; None starts all.
    """
    queue = list(jobs)
    waiting = iter(queue)

    async def work() -> None:
        for job in waiting:
            finished(job, await runner.run(workflow, job))

    tasks = [asyncio.ensure_future(work()) for _ in range(min(len(queue), at_once or len(queue)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:  # nothing goes on after an error
            task.cancel()
        raise


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Surplus prompts of one batch."""

    prompts: int
    samples: int
    """Samples of theirs that were finished, which is work thrown away."""


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
    reward_uses: Mapping[str, RewardUse] = field(default_factory=dict)
    """Calls of each reward component for the prompts that ended since the last batch, dropped ones included."""
    by_source: Mapping[str, float] = field(default_factory=dict)
    """Metrics of each source (`PromptSchedule.metrics`)."""
    cancelled: Cancelled | None = None
    """Surplus prompts that this batch was complete without; None in a run that starts none."""

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
        trajectories = self.trajectories
        counts: Counter[int] = Counter()
        for trajectory in trajectories:
            counts.update(itertools.compress(trajectory.versions, trajectory.loss_mask))
        num_tokens = counts.total()
        total_age = sum((self.version - version) * number for version, number in counts.items())
        return {
            "rollout/wait_seconds": self.wait_seconds,
            "rollout/staleness_mean": sum(ages) / len(ages),
            "rollout/staleness_max": float(max(ages)),
            "rollout/token_staleness_mean": total_age / num_tokens if num_tokens else 0.0,
            "rollout/token_staleness_max": float(self.version - min(counts, default=self.version)),
            "rollout/interruptions": float(self.interruptions),
            **{f"{names.DROPPED_PREFIX}{reason}": float(number) for reason, number in self.dropped.items()},
            **{f"{names.FAULT_PREFIX}{kind}": float(number) for kind, number in self.faults.items()},
            **self._cancelled_metrics(),
            **sample_metrics(trajectories),
            **use_metrics(self.reward_uses),
            **self.by_source,
        }

    def _cancelled_metrics(self) -> dict[str, float]:
        if self.cancelled is None:
            return {}
        prompts = self.cancelled.prompts
        ended = len(self.groups) + sum(number for reason, number in self.dropped.items() if reason != SURPLUS)
        return {
            names.CANCELLED: float(prompts),
            names.CANCELLED_SHARE: prompts / (prompts + ended),
            names.CANCELLED_SAMPLES: float(self.cancelled.samples),
        }
