"""The RL loop: rollouts, update, publish, in one readable pass. GRPO family, and PPO when a critic is configured.

One step, with B prompts per batch and staleness bound S (`rollout.max_head_offpolicyness`):

    batch = executor.next_batch()        B finished prompts, none older than S versions
    learner.prepare / learner.update     old log-probabilities, advantages, optimizer steps
    engine.update_weights                between two tokens; sequences in flight continue under the new version
    executor.advance                     frees B slots: only now may B further prompts be admitted

With S = 0 nothing is admitted before `advance`, so the same code is synchronous training.
"""

from __future__ import annotations

import contextlib
import gc
import time
from typing import TYPE_CHECKING, Any, Final

from areal.api import RolloutError
from areal.infra.metrics import names
from areal.infra.metrics.samples import VarianceWatch, recorded_metrics, reward_metrics
from areal.infra.rollout.episode import sample_id
from areal.infra.rollout.executor import RolloutExecutor
from areal.infra.rollout.loop_thread import RolloutStoppedError
from areal.trainer.assembly import (
    build_seeded,
    continue_sampling_rng,
    load_states,
    steps_in_run,
    to_save,
    tokenizer_of,
)
from areal.trainer.device_sharing import shared_device
from areal.trainer.device_starts import LearnersDevice
from areal.trainer.inference import build_inference_engine, lend_devices, publish_weights, transfer_metrics
from areal.trainer.learner import PolicyLearner, TrainedPolicy
from areal.trainer.learner_start import LearnerStart
from areal.trainer.policy_models import PolicyModels, build_models
from areal.trainer.rank_group import RankGroup
from areal.trainer.server_command import SERVERS_FOLDER
from areal.trainer.sources import TrainingSources
from areal.trainer.utilisation import Utilisation
from areal.utils import stats, tracing
from areal.utils.seeding import seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from areal.api import Trajectory
    from areal.infra.rollout.groups import RolloutBatch
    from areal.trainer.config import PPOConfig
    from areal.trainer.evaluation.sets import Evaluation, EvaluationSets, Evaluator
    from areal.trainer.learner_process import LearnerProcess
    from areal.trainer.session import RunSession, States
    from areal.trainer.teachers import TeacherChoice

    RewardTransform = Callable[[int, Sequence[Trajectory]], Sequence[Trajectory]]

_YOUNG_OBJECTS: Final = 100_000
"""Records of about a thousand episodes under way: fewer new ones are not searched for garbage in cycles."""


class PPOTrainer:
    """Builds every part from the configuration and runs the loop. It owns threads and processes: use `with`.

    with open_session(config) as session, PPOTrainer(config, session) as trainer:
        summary = trainer.train()
    """

    def __init__(
        self,
        config: PPOConfig,
        session: RunSession,
        group: RankGroup | None = None,
        *,
        transform_rewards: RewardTransform | None = None,
        separate: LearnerStart | None = None,
    ) -> None:
        """group: the ranks that the model is split over; None for this process alone. transform_rewards: changes a
        step's trajectories before advantages are computed, for control experiments. separate: the process of a
        separate learner, which ends with the trainer; None starts one if the configuration asks for it.
        """
        seed_everything(config.seed)
        self.config = config
        self.session = session
        self._separate: LearnerStart | None = None
        if config.separate_learner:
            self._separate = separate or LearnerStart()
        self._transform_rewards = transform_rewards
        with contextlib.ExitStack() as unless_built:
            if self._separate is not None:
                unless_built.callback(self._separate.close)
            self._build(group or RankGroup())
            if session.resumed is not None:
                continue_sampling_rng(self.models, session.resumed.path)
            unless_built.pop_all()

    def _build(self, group: RankGroup) -> None:
        """Build what trains and what samples."""
        config, session = self.config, self.session
        self.tokenizer = tokenizer_of(config.model)
        session.metrics.decode = self.tokenizer.decode
        session.view.begin("loading rows")
        with stats.scope() as recorded:
            self.sources = TrainingSources(config, self.tokenizer)
        if recorded:
            session.metrics.log(session.first_step, recorded_metrics(recorded))
        session.check_rows(self.sources.fingerprint())
        self.total_steps = steps_in_run(config, num_rows=self.sources.num_rows, batch_size=config.rollout.batch_size)
        session.check_unfinished(self.total_steps)
        self._learners_device = LearnersDevice(config, session.directory / SERVERS_FOLDER)
        self._learners_device.begin()
        session.view.begin("loading the model")
        leader: RankGroup | LearnerProcess = group
        if self._separate is not None:
            from areal.trainer.learner_process import LearnerProcess

            leader = LearnerProcess(config, self._separate)
        self.models = leader.create(build_seeded, build_models, config, self.tokenizer, self.total_steps)
        self.learner = PolicyLearner(self.models)
        self.actor = self.learner.actor
        self._utilisation = Utilisation(config, self.models.local.states.ranks)
        self.policy = TrainedPolicy(config, self.models, self.tokenizer)
        if session.resumed is not None:
            self.models.run(load_states, session.resumed.path)
        # Now, so that a reward that cannot be imported is reported before anything is sampled.
        session.view.begin("starting rewards and the engine")
        self.sources.start()
        sets: EvaluationSets | None = None
        if config.eval_sets:
            from areal.trainer.evaluation.sets import EvaluationSets

            sets = EvaluationSets(config, self.tokenizer, reward=self.sources.shared)
        self.device = shared_device(config, self.models, self._learners_device)
        """What servers and learner have in turn; None where both keep theirs."""
        self.engine = build_inference_engine(
            config,
            actor=self.policy,
            tokenizer=self.tokenizer,
            directory=session.directory,
            version=session.first_step,
            device=self.device,
            learns=True,
        )
        self.executor = self._build_executor()
        self._teachers: TeacherChoice | None = None
        if config.distillation is not None:
            from areal.trainer.teachers import TeacherChoice

            self._teachers = TeacherChoice(config.distillation, self.sources.rows)
        self._variance = VarianceWatch(compares_groups=config.objective.build().needs_group)
        self.evaluations: list[Evaluation] = []
        """Results of this process's evaluations, oldest first."""
        self.evaluator: Evaluator | None = None
        """None without evaluation sets."""
        if sets is not None:
            from areal.trainer.evaluation.sets import Evaluator

            self.evaluator = Evaluator(sets, self.executor, seed=config.seed)

    def __enter__(self) -> PPOTrainer:
        """Prepare for long life; rollouts begin in `train`."""
        # What was built lives as long as the run. Without this, each full garbage collection walks the million objects
        # of torch and transformers again, which stops both threads for longer than a small step takes.
        gc.collect()
        gc.freeze()
        # With Python's threshold of 700, collections take a seventh of the time of short episodes and find nothing:
        # neither their records nor a training step leave tensors in cycles.
        self._thresholds = gc.get_threshold()
        youngest, *others = self._thresholds
        # Of a user who chose: 0 turns collections off, and a higher one stays.
        gc.set_threshold(max(_YOUNG_OBJECTS, youngest) if youngest else 0, *others)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop threads and processes, whatever happened."""
        gc.unfreeze()
        gc.set_threshold(*self._thresholds)
        # From the last one to the first, each also when one of those before it raises.
        with contextlib.ExitStack() as closing:
            closing.callback(self._learners_device.close)
            if self._separate is not None:
                closing.callback(self._separate.close)
            closing.callback(self.sources.close)
            if self.evaluator is not None:
                closing.callback(self.evaluator.sets.close)
            closing.callback(self.engine.close)
            closing.callback(self.executor.close)

    def train(self) -> dict[str, Any]:
        """Run to the last step, a stop request, or an error. Returns the summary that `areal train --json` prints."""
        session = self.session
        first = session.first_step
        before = self._evaluate(first) if first == 0 else None
        if before is not None:
            session.measured(before.metrics(), self._export)
        # After the evaluation, so that a synchronous run samples its first batch with nothing else in flight.
        if not session.is_finished(self.total_steps):
            self.executor.start()
        progress = self.executor.batch_progress
        for step in session.steps(self.total_steps, self._states, self._export, progress=progress):
            clock = _Clock()
            try:
                rollout = self.executor.next_batch(self._should_stop)
            except RolloutStoppedError:
                continue  # a stop was requested while it waited, which ends the loop
            except RolloutError:
                # No batch came, so the state is still that between two steps: keep the work that was done.
                session.save_last(self._states)
                raise
            clock.lap("rollout_wait")
            lend_devices(self.config, self.engine, self.device)
            trajectories = [item for group in rollout.groups for item in group.trajectories]
            if tracing.active():
                for item in trajectories:
                    tracing.flow_end("sample", sample_id(item.group_id, item.sample_index))
            if self._transform_rewards is not None:
                trajectories = list(self._transform_rewards(step, trajectories))
            scored = self.sources.normalised(trajectories)
            if self._teachers is None:
                batch = self.learner.prepare(scored)
            else:
                teachers = self._teachers.of(scored)
                served = self._teachers.served(scored, teachers)
                batch = self.learner.prepare(scored, teachers, served)
            clock.lap("prepare")
            metrics = self.learner.update(batch)
            if scored is not trajectories:
                metrics |= reward_metrics(trajectories)  # normalised ones have mean 0 at every step
            clock.lap("update")
            version = step + 1
            publish_weights(self.config, self.engine, self.policy.publish, version, self.device)
            clock.lap("publish")
            # Before `advance`, so that a synchronous run evaluates with nothing else in flight and stays reproducible.
            every = self.config.eval_every_steps
            evaluation = self._evaluate(version) if every and version % every == 0 else None
            clock.lap("evaluate")
            self.executor.advance(version)
            metrics = self._log_step(version, rollout, clock, metrics)
            session.finish_step(metrics if evaluation is None else metrics | evaluation.metrics())
        self.executor.pause()
        after = self.evaluations[-1] if self.evaluations else None
        finished = session.finished_steps
        if session.is_finished(self.total_steps) and (after is None or after.step != finished):
            after = self._evaluate(finished)
            if after is not None:
                session.measured(after.metrics(), self._export)
        summary = session.summary(total_steps=self.total_steps, export=self._export)
        return summary | {
            "reward": session.last_metrics.get(names.REWARD_MEAN),
            "eval_before": None if before is None else before.metrics(),
            "eval_after": None if after is None else after.metrics(),
            "generated_tokens": int(self.engine.stats().get("generated_tokens", 0)),
        }

    def _log_step(
        self, step: int, rollout: RolloutBatch, clock: _Clock, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """Write metrics and rollouts of one step; returns the metrics with those of rollouts and clock."""
        tokens = int(metrics["tokens/sampled"])
        found = {
            **metrics,
            **clock.split(),
            **rollout.metrics(),
            **transfer_metrics(self.engine),
            **({} if self.device is None else self.device.metrics()),
            **self._utilisation.metrics(
                [len(item.tokens) for group in rollout.groups for item in group.trajectories],
                clock.seconds("update"),
                num_predicted=tokens,
            ),
            names.TOKENS_PER_SECOND: tokens / max(clock.total(), 1e-9),
            names.TIME_STEP: clock.total(),
        }
        if self.config.learns_from_reward:
            self._variance.note(step, found)
        self.session.metrics.log(step, found)
        self.session.metrics.log_rollouts(step, rollout.groups)
        return found

    def _evaluate(self, step: int) -> Evaluation | None:
        """None without sets, when it failed, and when a stop was requested."""
        evaluator = self.evaluator
        if evaluator is None:
            return None
        evaluation = self.session.evaluated(step, lambda: evaluator.run(step, self._should_stop))
        if evaluation is not None:
            self.evaluations.append(evaluation)
            self.session.metrics.log(step, evaluation.metrics())
        return evaluation

    def _should_stop(self) -> bool:
        return self.session.stop.requested

    def _build_executor(self) -> RolloutExecutor:
        config = self.config
        schedule = self.sources.schedule()
        executor = RolloutExecutor(
            engine=self.engine,
            rows=schedule,
            config=config.rollout,
            seed=config.seed,
            dataset_name=config.train_dataset.name,
            workflow_name=config.workflow,
            engine_name=config.rollout.engine,
        )
        if self.session.resumed is not None:
            executor.load_state_dict(self.session.resumed.load("rollout"))
        return executor

    def _states(self) -> States:
        return to_save(self.models, {"rollout": self.executor.state_dict()})

    def _export(self, folder: Path) -> None:
        self.models.run(PolicyModels.export, folder)
        self.tokenizer.save_pretrained(folder)


class _Clock:
    """Splits the wall time of one step."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[name] = now - self._last
        tracing.complete(name, int(self._last * 1e9), int(now * 1e9))
        self._last = now

    def seconds(self, name: str) -> float:
        return self._laps[name]

    def split(self) -> dict[str, float]:
        return {f"{names.TIME_PREFIX}{name}": value for name, value in self._laps.items()}

    def total(self) -> float:
        return self._last - self._start
