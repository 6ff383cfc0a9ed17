"""The rollout runtime: one thread with an event loop that keeps prompts in flight while the trainer trains.

    with RolloutExecutor(engine=engine, workflow=workflow, rows=rows, config=config, seed=1) as rollout:
        rollout.start()
        for version in range(steps):
            batch = rollout.next_batch()
            ...train, publish the weights as version + 1...
            rollout.advance(version + 1)

The trainer's thread calls the public methods; everything that touches episodes runs on the loop. `ledger` decides
which prompts may run and be trained and knows where each of them is.

Reproducibility: row, seed and order of a prompt depend on its ordinal alone, and all episodes of a wave are created in
order of (ordinal, sample) in one iteration of the loop. With max_head_offpolicyness 0 a run is therefore an ordinary
synchronous loop, sample for sample. A resumed run admits again, in order, whatever was in flight, finished but not
trained, or handed out but not trained when the state was saved: no prompt is lost and none is trained twice.
Surplus prompts (`surplus_prompts`) change neither, under consume="fifo": see `ledger`."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from areal.api import CheckpointError, DataError, Fault, FaultKind, PromptGroup, RolloutError, UsageError
from areal.infra.rollout.episode import EpisodeJob, EpisodeOutcome, EpisodeRunner
from areal.infra.rollout.groups import (
    STALE,
    SURPLUS,
    ZERO_VARIANCE,
    Cancelled,
    FailureTally,
    GroupRun,
    LostRewards,
    RolloutBatch,
    evaluate_rows,
    place_of,
    watch_of_evaluation,
)
from areal.infra.rollout.ledger import AdmissionPolicy, PromptLedger, PromptState
from areal.infra.rollout.loop_thread import POLL_INTERVAL_SECONDS, LoopThread, RolloutStoppedError, StallWatchdog, never
from areal.infra.rollout.schedule import PromptSchedule, RolloutSource, SourceExhaustedError
from areal.utils import stats

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence
    from typing import Self

    from areal.api import InferenceEngine, RolloutWorkflow
    from areal.infra.rollout.config import RolloutConfig
    from areal.infra.rollout.loop_thread import ShouldStop
    from areal.infra.rollout.schedule import PromptSource


_STATE_FORMAT = 2


class RolloutExecutor:
    """Keeps `(max_head_offpolicyness + 1) * batch_size` prompts live and hands out batches within the staleness bound.

    rows: prompts by ordinal, or a schedule of several sources. seed: of all sampling. workflow: of the sources that
    have none of their own. The names are recorded in each trajectory's provenance.

    Raises DataError when `rows` is empty. Any error on the loop (a prompt source that breaks, limits on failures) is
    raised by the next call of the trainer's thread.
    """

    def __init__(
        self,
        *,
        engine: InferenceEngine,
        rows: PromptSource | PromptSchedule,
        config: RolloutConfig,
        seed: int,
        workflow: RolloutWorkflow | None = None,
        dataset_name: str = "",
        workflow_name: str = "",
        engine_name: str = "",
    ) -> None:
        if len(rows) == 0:
            raise DataError("the prompt source has no rows; check the dataset path, split and filters")
        if workflow is None and not (isinstance(rows, PromptSchedule) and rows.has_workflows):
            raise UsageError("a source has no workflow; give the executor one")
        self._engine, self._workflow, self._config, self._seed = engine, workflow, config, seed
        self._schedule = rows if isinstance(rows, PromptSchedule) else PromptSchedule([RolloutSource(rows=rows)])
        self._runner = EpisodeRunner(
            engine,
            seed=seed,
            max_retries=config.max_retries,
            dataset_name=dataset_name,
            workflow_name=workflow_name or ("" if workflow is None else type(workflow).__name__),
            engine_name=engine_name or type(engine).__name__,
            on_attempt=self._note_attempt,
        )
        self._dataset_name = dataset_name
        self._policy = AdmissionPolicy(config)
        self._tally = FailureTally(config, place=self._place_of)
        self._lost = LostRewards(config, place=self._place_of)
        # Guards everything below. Held for bookkeeping only, never while an episode, a row or the engine is touched.
        self._changed = threading.Condition()
        self._ledger = PromptLedger()
        self._version: int | None = None
        self._finished: dict[int, PromptGroup] = {}
        self._condemned: dict[int, tuple[PromptGroup, str]] = {}
        """Finished prompts that are dropped, for a reason, when all before them have ended."""
        self._taken: tuple[PromptGroup, ...] = ()
        """The batch that is being trained."""
        self._exhausted: SourceExhaustedError | None = None
        self._runs: dict[int, GroupRun] = {}
        self._admitting = False
        self._waiting = False
        """Whether the trainer waits for a batch."""
        self._interruptions = 0
        self._totals: Counter[str] = Counter()
        self._wait_seconds = 0.0
        self._watchdog = StallWatchdog(config.stall_seconds, self._describe_pending)
        self._loop = LoopThread("areal-rollout", on_end=self._wake_callers)

    # -- the trainer's side ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start admitting prompts. The engine must be at the version the run continues from."""
        version = self._engine.version
        with self._changed:
            if self._version is not None and self._version != version:
                raise UsageError(
                    f"the engine is at version {version}, but the rollout state is from version {self._version}: "
                    f"publish the restored weights with version {self._version} before start()"
                )
            self._version, self._admitting = version, True
        self._ensure_running()
        self._loop.call(self._pump)

    def next_batch(self, should_stop: ShouldStop = never) -> RolloutBatch:
        """Wait for the next batch. Its prompts keep their slots until `advance`.

        Raises RolloutError when rollouts cannot make progress (with the tally of reasons) or the executor is closed,
        RolloutStoppedError soon after `should_stop` says so.
        """
        started = monotonic()
        with self._changed:
            version = self._require_started("next_batch")
            if self._ledger.count(PromptState.IN_TRAINING):
                raise UsageError("next_batch() was called twice; call advance() when the last batch has been trained")
            selected = self._wait_for_batch(version, should_stop)
            if self._policy.drops_in_order and not self._config.max_head_offpolicyness:
                # A limit on concurrency may have kept surplus from starting: how much of it has its rows is no race.
                self._admit(limited=False)
            self._ledger.take(selected)
            groups = self._taken = tuple(self._finished.pop(ordinal) for ordinal in selected)
            cancelled, given_up = self._end_surplus()
            by_source = self._schedule.metrics(groups)
            dropped, faults, reward_uses = self._tally.flush()
            interruptions, self._interruptions = self._interruptions, 0
            waited = monotonic() - started
            self._wait_seconds += waited
        self._loop.call(partial(_cancel, given_up))
        # Proven in `admission`, tested, and still checked here: whatever breaks it must not train silently.
        oldest = min(group.admitted_version for group in groups)
        if version - oldest > self._config.max_head_offpolicyness:
            raise RolloutError(
                f"bug: a prompt admitted at version {oldest} would be trained at {version}, beyond the bound of "
                f"{self._config.max_head_offpolicyness}"
            )
        return RolloutBatch(
            groups=groups,
            version=version,
            wait_seconds=waited,
            dropped=dropped,
            faults=faults,
            interruptions=interruptions,
            reward_uses=reward_uses,
            by_source=by_source,
            cancelled=cancelled,
        )

    def batch_progress(self) -> tuple[int, int]:
        """Return how many samples of the next batch there are, and how many it needs; from any thread."""
        wanted = self._config.batch_size * self._config.group_size
        with self._changed:
            finished = len(self._finished) * self._config.group_size
            under_way = sum(len(run.outcomes) for run in self._runs.values())
        return min(wanted, finished + under_way), wanted

    def advance(self, version: int) -> None:
        """Note that the last batch has been trained and its weights are published as `version`: free its slots, admit
        more.

        version: one more than before, or unchanged when the optimizer skipped the step.
        """
        with self._changed:
            current = self._require_started("advance")
            if version not in (current, current + 1):
                raise UsageError(f"advance({version}) at version {current}: expected {current + 1}, or {current} again")
            if not self._ledger.count(PromptState.IN_TRAINING):
                raise UsageError("advance() without a batch from next_batch(): nothing was trained")
            self._ledger.train()
            for group in self._taken:
                self._schedule.end(group.ordinal, group)
            self._taken = ()
            self._version = version
            stale = self._policy.expired(self._ledger, version)
            given_up = [run for ordinal in stale if (run := self._give_up(ordinal, STALE)) is not None]
            self._schedule.advance()
        self._loop.raise_failure()
        self._loop.call(partial(_cancel, given_up))
        self._loop.call(self._pump)

    def evaluate(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        workflow: RolloutWorkflow | None = None,
        group_size: int = 1,
        stream: str = "eval",
        should_stop: ShouldStop = never,
    ) -> list[PromptGroup]:
        """Run `workflow` (None: the training one) over `rows` on the same engine and wait; one group per row, in order.

        Samples that fail are missing from their group, with their faults; ledger, limits and randomness of training are
        untouched. Works before `start` and between any two training steps. Seeds depend on (stream, run seed, position
        of the row, sample) only, so that every evaluation of a run asks for the same randomness. Raises
        RolloutStoppedError soon after `should_stop` says so; nothing of the evaluation goes on.
        """
        self._ensure_running()
        workflow = workflow or self._workflow
        if workflow is None:
            raise UsageError("evaluate() needs a workflow: every source of the run has its own")
        runner = EpisodeRunner(
            self._engine,
            seed=self._seed,
            max_retries=self._config.max_retries,
            workflow_name=type(workflow).__name__,
            engine_name=type(self._engine).__name__,
            on_attempt=watch_of_evaluation(self._config),
        )
        evaluation = evaluate_rows(
            runner, workflow, rows, group_size=group_size, version=self._engine.version, stream=stream
        )
        return self._loop.run(evaluation, should_stop)

    def pause(self) -> None:
        """Admit no further prompts; those in flight go on. Idempotent."""
        with self._changed:
            self._admitting = False

    def resume(self) -> None:
        """Undo `pause`. Idempotent."""
        with self._changed:
            self._require_started("resume")
            self._admitting = True
        self._loop.call(self._pump)

    def stats(self) -> dict[str, float]:
        """Counters of the whole run, e.g. {"in_flight": 8.0, "trained": 640.0, "dropped/stale": 3.0}."""
        with self._changed:
            counts: dict[str, float] = {**self._ledger.counts(), **self._totals}
            counts |= {f"faults/{kind}": number for kind, number in self._tally.total_faults.items()}
            counts |= {"steps": self._ledger.steps, "wait_seconds": self._wait_seconds}
        return {name: float(number) for name, number in counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for `load_state_dict`; call it between `advance` and `next_batch`.

        Called earlier, the batch that is being trained counts as not trained, which is right when the weights are saved
        from before the step.
        """
        with self._changed:
            return {
                "format": _STATE_FORMAT,
                "seed": self._seed,
                "rows_per_epoch": len(self._schedule),
                "version": self._version if self._version is not None else self._engine.version,
                "ledger": self._ledger.state_dict(),
                "schedule": self._schedule.state_dict(),
                "tally": self._tally.state_dict(),
                "totals": dict(self._totals),
                "wait_seconds": self._wait_seconds,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved run; before `start`. Raises CheckpointError when its rows or its seed were others."""
        mine = {"format": _STATE_FORMAT, "seed": self._seed, "rows_per_epoch": len(self._schedule)}
        for name, value in mine.items():
            if state.get(name) != value:
                raise CheckpointError(
                    f"rollout state: {name} is {state.get(name)!r}, this run has {value!r}; prompts and samples would "
                    f"differ from those already trained. Resume with the settings of the saved run, or start a new one"
                )
        with self._changed:
            if self._admitting or self._ledger.next_ordinal:
                raise UsageError("load_state_dict() after start(): load first")
            self._version = int(state["version"])
            self._schedule.load_state_dict(state["schedule"])
            self._ledger = PromptLedger.restored(state["ledger"])
            self._tally.load_state_dict(state["tally"])
            self._totals.update({str(name): int(number) for name, number in state["totals"].items()})
            self._wait_seconds = float(state["wait_seconds"])

    def close(self) -> None:
        """Cancel all episodes, end the threads; waiting callers get RolloutError. Idempotent. The engine stays open."""
        with self._changed:
            self._admitting = False
        self._watchdog.stop()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the loop's side ---------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Admit what the bound allows and create its episodes, in order."""
        with self._changed:
            admitted = self._admit()
        for run in admitted:
            self._launch(run)

    def _admit(self, *, limited: bool = True) -> list[GroupRun]:
        """Give slots to what the bound allows; the lock is held. limited: by max_concurrent_prompts, too."""
        admitted: list[GroupRun] = []
        if not self._admitting or self._loop.failed or self._version is None:
            return admitted
        if not self._ledger.count(PromptState.IN_FLIGHT):
            self._watchdog.beat()
        for _ in range(self._policy.room(self._ledger, waiting=self._waiting, limited=limited)):
            try:
                visit = self._schedule.draw(self._ledger.next_to_admit)
            except SourceExhaustedError as error:
                # What is in flight may still fill a batch, and the run may end before it needs more.
                self._exhausted = error
                break
            ordinal = self._ledger.admit(self._version)
            source = self._schedule.name(visit)
            run = GroupRun(ordinal=ordinal, admitted_version=self._version, source=source, visit=visit)
            self._runs[ordinal] = run
            admitted.append(run)
        return admitted

    def _launch(self, run: GroupRun) -> None:
        if self._runs.get(run.ordinal) is not run:
            return  # given up since it was admitted
        assert run.visit is not None, "drawn at admission"
        try:
            with stats.scope() as recorded:
                data = self._schedule.row(run.visit)
        except DataError as error:
            run.jobs.append(self._job(run, 0, {}, {}))
            fault = Fault(kind=FaultKind.DATA_INVALID, message=f"row of prompt {run.ordinal}: {error}")
            run.outcomes[0] = EpisodeOutcome(faults=(fault,))
            # Not directly: dropping admits a replacement, and a long run of bad rows must not grow the stack.
            self._loop.call(partial(self._conclude_unread, run, fault))
            return
        run.jobs.extend(self._job(run, index, data, recorded) for index in range(self._config.group_size))
        workflow = self._schedule.workflow(run.visit) or self._workflow
        assert workflow is not None, "checked when this was built"
        for job in run.jobs:
            task = self._loop.spawn(self._runner.run(workflow, job))
            run.tasks.add(task)
            task.add_done_callback(partial(self._sample_done, run, job))

    def _job(
        self, run: GroupRun, sample_index: int, data: Mapping[str, Any], recorded: Mapping[str, Sequence[float]]
    ) -> EpisodeJob:
        return EpisodeJob(
            stream="train",
            ordinal=run.ordinal,
            sample_index=sample_index,
            data=data,
            admitted_version=run.admitted_version,
            row_index=-1 if run.visit is None else self._schedule.row_index(run.visit),
            source=run.source,
            visit=run.visit,
            recorded=recorded,
        )

    def _place_of(self, job: EpisodeJob) -> str:
        place = "" if job.visit is None else self._schedule.place(job.visit)
        if not place:
            return place_of(job, job.source or self._dataset_name)
        of = f"dataset {self._dataset_name}, " if self._dataset_name else ""
        of = f"source {job.source}, " if job.source else of
        return f"prompt {job.ordinal}, {of}{place}, sample {job.sample_index}"

    def _conclude_unread(self, run: GroupRun, fault: Fault) -> None:
        self._note_attempt(run.jobs[0], fault)
        self._conclude(run)

    def _note_attempt(self, job: EpisodeJob, fault: Fault | None) -> None:
        if fault is not None:
            with self._changed:
                self._tally.record_fault(fault, job)
        self._lost.note(job, fault)

    def _sample_done(self, run: GroupRun, job: EpisodeJob, task: asyncio.Task[EpisodeOutcome]) -> None:
        run.tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._loop.fail(error)
            return
        self._watchdog.beat()
        outcome = task.result()
        run.outcomes[job.sample_index] = outcome
        with self._changed:
            self._interruptions += job.progress.interruptions
            self._totals["interruptions"] += job.progress.interruptions
            self._totals["episodes"] += 1
            self._totals["episodes_rejected"] += outcome.rejected
        if run.complete:
            self._conclude(run)

    def _conclude(self, run: GroupRun) -> None:
        """All samples of a prompt are there: keep it or drop it."""
        with self._changed:
            if self._runs.get(run.ordinal) is not run:
                return  # given up meanwhile
            del self._runs[run.ordinal]
            group, reason = run.group(), run.drop_reason(self._config)
            self._tally.record_uses(group.reward_uses)
            if reason is None:
                self._ledger.finish(run.ordinal)
                self._finished[run.ordinal] = group
                self._tally.record_success()
            elif self._policy.keeps_surplus_apart:
                self._ledger.finish(run.ordinal)
                self._condemned[run.ordinal] = (group, reason)
            else:
                self._drop(group, reason)
            if self._policy.keeps_surplus_apart:
                self._drop_condemned()
            # With the lock, so that the trainer takes its batch before or after a drop and its replacement.
            admitted = self._admit()
            # A drop counts as well: it may have been the prompt that the oldest finished ones were waiting for.
            if self._ledger.count(PromptState.FINISHED) >= self._config.batch_size:
                self._changed.notify_all()
        for other in admitted:
            self._launch(other)

    def _drop_condemned(self) -> None:
        """Drop those whose turn it is: what comes after those that the bound admits is surplus, which has no turn yet.
        With drops in order, all before have to have ended."""
        ahead = 0
        for prompt in list(self._ledger.live.values()):
            waits = prompt.state is PromptState.IN_FLIGHT and self._policy.drops_in_order
            if waits or ahead == self._policy.max_live:
                return
            if prompt.ordinal in self._condemned:
                self._drop(*self._condemned.pop(prompt.ordinal))
            else:
                ahead += 1

    def _drop(self, group: PromptGroup, reason: str) -> None:
        self._ledger.drop(group.ordinal, reason)
        # Equal rewards say how hard the row is; a group that lost samples does not.
        self._schedule.end(group.ordinal, group if reason == ZERO_VARIANCE else None)
        try:
            self._tally.record_drop(reason)
        except RolloutError as error:
            self._loop.fail(error)

    # -- both, with the lock -----------------------------------------------------------------------------------------

    def _wait_for_batch(self, version: int, should_stop: ShouldStop) -> tuple[int, ...]:
        """Return the prompts of the next batch when they are there; surplus is admitted meanwhile."""
        try:
            while True:
                self._loop.raise_failure()
                selected = self._policy.select(self._ledger, version)
                if selected is not None:
                    return selected
                if self._exhausted is not None:
                    left = len(self._ledger.live) + self._ledger.num_waiting
                    if left < self._config.batch_size:
                        raise self._exhausted
                if should_stop():
                    raise RolloutStoppedError("asked to stop while waiting for a batch")
                if self._policy.has_surplus and not self._waiting:
                    self._waiting = True
                    self._loop.call(self._pump)
                self._changed.wait(POLL_INTERVAL_SECONDS)
        finally:
            self._waiting = False

    def _end_surplus(self) -> tuple[Cancelled | None, list[GroupRun]]:
        """Give up what the batch was complete without; return what that was, and what is in flight of it."""
        if not self._policy.has_surplus:
            return None, []
        ordinals = self._policy.surplus(self._ledger)
        done = sum(len(self._runs[ordinal].outcomes) for ordinal in ordinals if ordinal in self._runs)
        done += sum(ordinal not in self._runs for ordinal in ordinals) * self._config.group_size
        reason = None if self._policy.requeues else SURPLUS
        given_up = [run for ordinal in ordinals if (run := self._give_up(ordinal, reason)) is not None]
        self._totals["cancelled"] += len(ordinals)
        return Cancelled(prompts=len(ordinals), samples=done), given_up

    def _give_up(self, ordinal: int, reason: str | None) -> GroupRun | None:
        """End a live prompt without a result; return it when it is in flight. reason: why it is dropped; None admits it
        again."""
        if reason is None:
            self._ledger.requeue(ordinal)
        else:
            self._ledger.drop(ordinal, reason)
            self._schedule.end(ordinal, None)
            self._tally.record_drop(reason)
        self._finished.pop(ordinal, None)
        self._condemned.pop(ordinal, None)
        return self._runs.pop(ordinal, None)

    # -- both --------------------------------------------------------------------------------------------------------

    def _ensure_running(self) -> None:
        if self._loop.start():
            self._watchdog.start()

    def _require_started(self, method: str) -> int:
        if self._version is None or not self._loop.started:
            raise UsageError(f"{method}() before start()")
        return self._version

    def _wake_callers(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _describe_pending(self) -> list[str]:
        with self._changed:
            runs = list(self._runs.values())
        return [run.describe() for run in runs[:10]] + (
            [f"and {len(runs) - 10} more prompts"] if len(runs) > 10 else []
        )


def _cancel(runs: Sequence[GroupRun]) -> None:
    """End the episodes of prompts that were given up; their requests end in the engine. On the loop."""
    for run in runs:
        for task in list(run.tasks):
            task.cancel()
