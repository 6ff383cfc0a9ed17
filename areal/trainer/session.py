"""Surround learning in every run: the directory and its lock, metrics, checkpoints, signals, and recovery."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import areal
from areal.api import ArealError, CheckpointError, ConfigError, FinishedError
from areal.engine.precision import concrete_dtype
from areal.infra.checkpoint.archive import ARCHIVE_FOLDER, archive_run, complete_archive
from areal.infra.checkpoint.run_control import RunLock, StopRequest
from areal.infra.checkpoint.schedule import SaveSchedule
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.launch.launcher import LOG_FOLDER_VARIABLE
from areal.infra.launch.ranks import START_VARIABLE
from areal.infra.metrics import names
from areal.infra.metrics.attempts import run_id_of
from areal.infra.metrics.live_view import LiveView
from areal.infra.metrics.logger import LOG_FILE, METRICS_FILE, MetricLogger, read_metrics
from areal.infra.metrics.trackers.config import TrackersConfig
from areal.infra.rollout.loop_thread import RolloutStoppedError
from areal.infra.supervisor.process import INCARNATION_VARIABLE
from areal.trainer.code_fingerprint import fingerprint_code
from areal.trainer.configuration.computing import computing
from areal.trainer.configuration.source import dump_yaml, to_mapping
from areal.trainer.milestones import EXPORTS, EarlyStop, RunExports
from areal.trainer.recovery import FINISHED_FILE, WAYS_OUT, exported_step, refusal, rows_refusal
from areal.utils.atomic import atomic_write
from areal.utils.logging import getLogger, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from areal.infra.checkpoint.store import Checkpoint
    from areal.infra.metrics.trackers.tracking import Trackers
    from areal.trainer.config import RunConfig

    States = Mapping[str, Any] | Callable[[Path], None]

_logger = getLogger(__name__)
_T = TypeVar("_T")


class RunSession:
    """Hold of this process on its run directory. Use `open_session`."""

    def __init__(self, config: RunConfig, directory: Path, stop: StopRequest, view: LiveView) -> None:
        self.config = config
        self.view = view
        self.directory = directory
        self.stop = stop
        self.store = CheckpointStore(directory / "checkpoints", keep=config.checkpoint.keep)
        self._code = fingerprint_code(config)
        self.resumed: Checkpoint | None = self._find_checkpoint()
        self._rows: str | None = None
        self._exports: RunExports | None = None
        if config.export.every_steps or config.export.best_metric or (directory / EXPORTS).is_dir():
            self._exports = RunExports(directory, config.export, first_step=self.first_step)
        self._early_stop: EarlyStop | None = None
        if config.early_stop is not None:
            watched = None if self.resumed is None else self.resumed.meta.get("early_stop")
            self._early_stop = EarlyStop(config.early_stop, watched)
        run_id = run_id_of(directory / METRICS_FILE, continues=self.resumed is not None)
        self._trackers = self._open_trackers(run_id) if config.metrics.trackers != TrackersConfig() else None
        # Metrics of step k stand for k finished steps; later ones are about to be done again.
        first_logged = self.first_step + 1 if self.resumed is not None else 0
        self.metrics = MetricLogger(
            directory, config.metrics, first_step=first_logged, run_id=run_id, trackers=self._trackers
        )
        self.finished_steps = self.first_step
        """Training steps of the run that are done, those before a resume included."""
        self.total_steps: int | None = None
        """Training steps of the whole run; None until they are known."""
        self.last_metrics: dict[str, float] = {}
        """Of the last step that this process finished; empty before."""
        self._schedule = SaveSchedule(config.checkpoint)
        self._failed_saves = 0
        self._retry_pause = 1
        self._retry_step: int | None = None
        """Step after which a failed save is tried again; None when the last one worked."""
        self._saved_step = self.first_step if self.resumed is not None else -1
        self._saved_folder = None if self.resumed is None else self.resumed.path
        self._started = time.monotonic()

    @property
    def first_step(self) -> int:
        """Index of the first step this process runs: 0, or the number of steps the checkpoint has seen."""
        return 0 if self.resumed is None else self.resumed.step

    def is_finished(self, total_steps: int) -> bool:
        """Whether the run is done: all its steps, or those before an early stop."""
        return self.finished_steps >= total_steps or self._stopped_early

    def steps(
        self,
        total_steps: int,
        states: Callable[[], States],
        export: Callable[[Path], None],
        *,
        progress: Callable[[], tuple[int, int]] | None = None,
    ) -> Iterator[int]:
        """Yield the index of each step to do, until the run is finished or a stop is requested.

            for step in session.steps(total_steps, states, export):
                metrics = ...  # the work of the step
                session.finish_step(metrics)

        After each finished step, progress is shown, and the model exported and the state saved when that is due; after
        the last one it is always saved. A body that was asked to stop before it did anything leaves by `continue`. When
        the body raises, nothing is saved unless it calls `save_last`, since the state may be one in the middle of a
        step.

        states: what a checkpoint holds (see `CheckpointStore.save`), asked for between two steps. export: writes the
        model into a folder. progress: returns how many samples of the coming step are there and how many it needs.
        """
        self.total_steps = total_steps
        self._schedule.start()
        self.view.plan(total_steps, first_step=self.finished_steps, progress=progress)
        with contextlib.ExitStack() as recordings:
            windows = None
            if self.config.metrics.trace is not None or self.config.metrics.profile is not None:
                from areal.infra.metrics.windows import StepWindows

                windows = recordings.enter_context(contextlib.closing(StepWindows(self.config.metrics, self.directory)))
            while not self.is_finished(total_steps) and not self.stop.requested:
                step = self.finished_steps
                if windows is not None:
                    windows.begin(step + 1)
                yield step
                if windows is not None:
                    windows.end(step + 1)
                if self.finished_steps == step:
                    continue
                step = self.finished_steps
                self.view.update(step, self.last_metrics)
                if self._early_stop is not None:
                    self._early_stop.after_step(step, self.last_metrics)
                if self._exports is not None:
                    self._exports.after_step(step, self.last_metrics, export)
                if self._schedule.is_due(step) or step == self._retry_step:
                    self.save(step, states)
        self.view.end_steps()
        self.save_last(states)

    def finish_step(self, metrics: dict[str, float]) -> None:
        """Count the step that `steps` yielded last as done."""
        self.finished_steps += 1
        self.last_metrics = metrics

    def measured(self, metrics: Mapping[str, float], export: Callable[[Path], None]) -> None:
        """Take note of an evaluation outside of steps: before the first, or after the last."""
        # Training has to improve on where it starts; a model that was not trained is not exported.
        if self.finished_steps and self._exports is not None:
            self._exports.after_step(self.finished_steps, metrics, export)
        elif not self.finished_steps and self._early_stop is not None:
            self._early_stop.after_step(0, metrics)

    def save_last(self, states: Callable[[], States]) -> None:
        """Save the state of the finished steps, if that was not done yet; a failure is an error at once."""
        if self._saved_step != self.finished_steps:
            self.save(self.finished_steps, states, last=True)

    @property
    def saved(self) -> dict[str, Any] | None:
        """Step and folder of the newest checkpoint; None when there is none yet."""
        return None if self._saved_folder is None else {"step": self._saved_step, "folder": str(self._saved_folder)}

    def summary(self, *, total_steps: int, export: Callable[[Path], None]) -> dict[str, Any]:
        """Return what all kinds of run report. `export` writes the trained model into the folder it is given, if
        finished.
        """
        finished = self.is_finished(total_steps)
        final = self.directory / "final"
        if finished:
            export(final)
            atomic_write(self.directory / FINISHED_FILE, json.dumps({"steps": self.finished_steps}))
        return {
            "ok": True,
            "finished": finished,
            "directory": str(self.directory),
            "checkpoint": str(final) if finished else None,
            "saved": self.saved,
            "steps": self.finished_steps,
            "total_steps": total_steps,
            "stopped_early": self._stopped_early and self.finished_steps < total_steps,
            "exports": None if self._exports is None else self._exports.summary(),
            "seconds": round(time.monotonic() - self._started, 2),
            "exit_code": self.stop.exit_code,
        }

    def save(self, step: int, states: Callable[[], States], *, last: bool = False) -> None:
        """Write recovery state. A failure is reported and training goes on, until max_write_failures in a row.

        A failed save is tried again after 1, 2, 4, ... further steps, so that a disk that has room again is used long
        before the next regular save; only those of `every_steps` count as failures in a row.

        step: number of finished training steps. last: nothing comes after it, so a failure is an error at once.
        """
        meta = {"config": to_mapping(self.config), "rows": self._rows, "code": self._code, **computing()}
        meta |= {
            "early_stop": None if self._early_stop is None else self._early_stop.state_dict(),
            "dtype": concrete_dtype(self.config.actor),
        }
        try:
            with self._schedule.measured():
                folder = self.store.save(step, states(), meta=meta)
        except CheckpointError as error:
            if last:
                raise
            self._retry_step, self._retry_pause = step + self._retry_pause, 2 * self._retry_pause
            self._failed_saves += self._schedule.is_by_steps(step)
            if self._failed_saves >= self.config.checkpoint.max_write_failures:
                raise CheckpointError(f"{self._failed_saves} saves in a row failed, giving up: {error}") from error
            _logger.error(  # noqa: TRY400 - the message says it all
                "%s; training goes on (%d of %d tolerated failures), next attempt at the latest after step %d",
                error,
                self._failed_saves,
                self.config.checkpoint.max_write_failures,
                self._retry_step,
            )
        else:
            self._failed_saves, self._retry_pause, self._retry_step = 0, 1, None
            self._saved_step, self._saved_folder = step, folder

    def evaluated(self, step: int, evaluate: Callable[[], _T]) -> _T | None:
        """Return what `evaluate` returns; None when it fails, which is logged and marked but ends no training, and when
        it was stopped. Before the first step a failure is raised: whoever started the run is still there to mend it.
        """
        self.view.begin("evaluating")
        try:
            return evaluate()
        except RolloutStoppedError:
            return None
        except Exception:
            if step == 0:
                raise
            _logger.exception("evaluation at step %d failed; training goes on", step)
            self.metrics.log(step, {names.EVAL_FAILED: 1.0})
            return None

    def check_rows(self, fingerprint: str) -> None:
        """Say which rows the run trains on; saved with each checkpoint.

        Raises ConfigError when the resumed checkpoint was trained on others, which equal paths and counts do not rule
        out, unless checkpoint.allow_config_change is set.
        """
        self._rows = fingerprint
        before = None if self.resumed is None else self.resumed.meta.get("rows")
        problem = rows_refusal(before, fingerprint, step=self.first_step)
        if problem and not self.config.checkpoint.allow_config_change:
            raise ConfigError(f"{problem}; {WAYS_OUT}", where="train_dataset", fix=WAYS_OUT)

    def check_unfinished(self, total_steps: int) -> None:
        """Raise FinishedError when all steps are done and the model is written: the same run has nothing left to do."""
        self.total_steps = total_steps
        is_done = self.resumed is not None and self.is_finished(total_steps)
        if is_done and exported_step(self.directory) == self.first_step:
            raise FinishedError(
                f"already finished: nothing trained. {self._done}, and its model is in {self.directory / 'final'}",
                where=str(self.directory),
                fix="train longer with a larger total_train_steps (or total_train_epochs), start over with --restart "
                "(the old run is archived), or use another output_dir",
            )

    def end_trackers(self, exit_code: int) -> None:
        """Tell the trackers how the run ends, with the newest numbers of it."""
        if self._trackers is None:
            return
        from areal.infra.metrics.trackers.tracking import Ending

        finished = self.total_steps is not None and self.is_finished(self.total_steps)
        summary = {"steps": self.finished_steps, "seconds": round(time.monotonic() - self._started, 2)}
        ending = Ending(state="finished" if finished else "interrupted", exit_code=exit_code, summary=summary)
        asked = exit_code in (0, self.stop.exit_code, 130)
        self._trackers.finish(ending if asked else replace(ending, state="failed"))

    def _open_trackers(self, run_id: str) -> Trackers:
        """Open the trackers that the configuration asks for, with a description of this run."""
        from areal.infra.metrics.trackers.tracking import TrackedRun, open_trackers

        config = self.config
        run = TrackedRun(
            directory=self.directory,
            experiment=config.experiment_name,
            trial=config.trial_name,
            config=to_mapping(config),
            id=run_id,
            first_step=self.first_step,
            continues=self.resumed is not None,
        )

        def finished() -> dict[int, dict[str, float]]:
            file = self.directory / METRICS_FILE
            steps = read_metrics(file) if run.continues and file.is_file() else {}
            return {step: values for step, values in steps.items() if step <= self.first_step}

        return open_trackers(run, config.metrics.trackers, finished=finished)

    @property
    def _stopped_early(self) -> bool:
        return self._early_stop is not None and self._early_stop.stopped

    @property
    def _done(self) -> str:
        if self._stopped_early:
            return f"early_stop has ended the run in {self.directory} after step {self.first_step}"
        return f"All {self.first_step} steps of the run in {self.directory} are done"

    def _find_checkpoint(self) -> Checkpoint | None:
        if not self.config.checkpoint.resume:
            if self.store.steps():
                raise ConfigError(
                    f"{self.directory} already holds checkpoints of steps {self.store.steps()}, and checkpoint.resume "
                    f"is false; start over with --restart, which archives them, resume the run, or choose another "
                    f"output_dir",
                    where=str(self.directory),
                    fix="start over with --restart, which archives what is there",
                )
            return None
        checkpoint = self.store.load_latest()
        if checkpoint is not None:
            self._check_same_run(checkpoint)
            _logger.info("continuing from step %d (%s)", checkpoint.step, checkpoint.path)
        return checkpoint

    def _check_same_run(self, checkpoint: Checkpoint) -> None:
        problem = refusal(self.config, self._code, checkpoint.meta, step=checkpoint.step)
        if problem and not self.config.checkpoint.allow_config_change:
            raise ConfigError(f"{problem}\n{WAYS_OUT}", where=str(checkpoint.path), fix=WAYS_OUT)
        if problem:
            _logger.warning("accepted because of checkpoint.allow_config_change: %s", problem)


def view_of(config: RunConfig) -> LiveView:
    """Return the view of a run, which is a context; it is drawn before torch is loaded."""
    return LiveView(title=f"{config.experiment_name}/{config.trial_name}", enabled=config.metrics.progress)


@contextlib.contextmanager
def open_session(config: RunConfig, *, restart: bool = False, view: LiveView | None = None) -> Iterator[RunSession]:
    """Lock the run directory, record configuration and log, watch for signals; close all of it at the end.

    restart: move what an earlier run left in the directory into `archived/` first. The later starts of a launch, which
    repeat its command, continue what the first one began. view: shows the run already; None opens one.

    log.jsonl gets this package's log lines between a line about the start and one about the end, whatever end it is;
    only a process that is killed leaves the last one out.

    Raises BusyError when another process runs there, ConfigError when its checkpoints belong to another configuration.
    """
    directory = config.directory
    with contextlib.ExitStack() as stack:
        stack.enter_context(RunLock(directory))
        archived = complete_archive(directory) if (directory / ARCHIVE_FOLDER).is_dir() else None
        if restart and os.environ.get(START_VARIABLE, "0") == "0":
            archived = archive_run(directory) or archived
        stop = stack.enter_context(StopRequest())
        event = stack.enter_context(recorded(directory / LOG_FILE))
        launch = {"incarnation": os.environ.get(INCARNATION_VARIABLE), "logs": os.environ.get(LOG_FOLDER_VARIABLE)}
        process = {"pid": os.getpid(), "host": socket.gethostname(), "areal": areal.__version__}
        event("run started", kind="start", **process, **launch)
        if archived is not None:
            _logger.info("what an earlier run left in %s is now in %s", directory, archived)
        started = time.monotonic()
        session: RunSession | None = None
        problem: BaseException | None = None
        try:
            view = view or stack.enter_context(view_of(config))
            view.begin("looking for a checkpoint")
            session = RunSession(config, directory, stop, view)
            stack.callback(session.metrics.close)
            atomic_write(directory / "config.yaml", dump_yaml(config))
            yield session
        except BaseException as error:
            problem = error
            if session is not None and session.saved is not None and not isinstance(error, FinishedError | ConfigError):
                _logger.info(
                    "the state after step %(step)d is saved in %(folder)s; the same command continues from there",
                    session.saved,
                )
            raise
        finally:
            seconds = round(time.monotonic() - started, 2)
            end = _end_of(session, stop, problem)
            if session is not None:
                session.end_trackers(end["exit_code"])
            event("run ended", error=problem, kind="end", seconds=seconds, **end)


def _end_of(session: RunSession | None, stop: StopRequest, problem: BaseException | None) -> dict[str, Any]:
    """Fields of the last line of the log: where the run is, and why it ends."""
    steps = {} if session is None else {"steps": session.finished_steps, "total_steps": session.total_steps}
    if isinstance(problem, FinishedError):
        return {**steps, "exit_code": problem.exit_code, "problem": None}
    if problem is None:
        return {**steps, "exit_code": stop.exit_code, "problem": None}
    code = problem.exit_code if isinstance(problem, ArealError) else 1
    code = 130 if isinstance(problem, KeyboardInterrupt) else code
    return {**steps, "exit_code": code, "problem": f"{type(problem).__name__}: {problem}"}
