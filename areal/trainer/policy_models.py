"""The models of one rank that an RL run trains or asks: actor, critic, reference and teachers.

They score and train the rows of a batch that this rank is given; what is about the whole batch comes with it. A run has
one such object on every rank, and `areal.trainer.learner` on rank 0 leads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from areal.algorithm.blocks import block_name
from areal.algorithm.supervised import value_loss
from areal.algorithm.tokens import sampler_mismatch
from areal.api import ConfigError, DistilledBatch, EngineError, LossOutput, PaddedBatch, TrainStats
from areal.engine.train.lending import LentMemory
from areal.engine.train.runner import FrozenModel
from areal.models.value_head import ValueModel
from areal.trainer.assembly import EngineStates, build_engine, build_scorer, export_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.algorithm.aggregations import Denominators
    from areal.algorithm.objective import Objective
    from areal.api import TeacherScores
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.engine import TrainingEngine
    from areal.infra.weights.stream import StreamOrder, StreamOutcome
    from areal.trainer.assembly import LogpScorer
    from areal.trainer.config import PPOConfig
    from areal.trainer.shard_streams import RankStreams
    from areal.trainer.teachers import LocalTeachers


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScores:
    """What the weights before an update say about a whole batch, [S, L] on the CPU; None where nothing was asked."""

    logp_prox: Tensor | None = None
    logp_ref: Tensor | None = None
    values: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchCounts:
    """What the loss of a part has to know of the whole minibatch."""

    denominators: Denominators
    """Of the actor's loss."""
    critic: Denominators
    distilled: Denominators | None
    """Of the loss towards teachers; None without."""
    fresh_tokens: float | None
    """Sampled tokens of the weights at the start of the step; None when sampler and trainer are not compared."""


class PolicyModels:
    """Owns the actor and, when the objective asks for them, critic, reference and teachers. On every rank."""

    def __init__(
        self,
        *,
        config: PPOConfig,
        objective: Objective,
        actor: TrainingEngine,
        critic: TrainingEngine | None = None,
        reference: LogpScorer | None = None,
        teachers: LocalTeachers | None = None,
    ) -> None:
        """Raise ConfigError when critic or reference do not fit what the objective needs."""
        if objective.needs_critic != (critic is not None):
            name = block_name(objective.advantage)
            need = "needs a critic: set `critic`" if objective.needs_critic else "uses no critic: remove `critic`"
            raise ConfigError(f"objective {config.objective.preset!r} (advantage {name!r}) {need}")
        if objective.needs_reference and reference is None:
            raise ConfigError(f"objective {config.objective.preset!r} with kl.coef > 0 needs a reference model")
        self.config = config
        self.objective = objective
        self.actor = actor
        self.critic = critic
        self.reference = reference
        self.teachers = teachers
        self._streams: RankStreams | None = None
        self._lent = LentMemory(actor.device, self._device_tensors)
        engines = {"actor": actor} if critic is None else {"actor": actor, "critic": critic}
        # Of the trained models; the reference is rebuilt from the run's start.
        self.states = EngineStates(engines, together="learner")

    def score(self, batch: DividedBatch, *, with_prox: bool) -> BatchScores:
        """Score all rows by the weights before the update. with_prox: by the actor as well."""
        self._require_awake()
        batch = self.actor.receive(batch)
        temperature = self.temperature
        logp_prox, logp_ref, values = None, None, None
        if with_prox:
            logp_prox = self.actor.forward_logp(batch, temperature=temperature, only_masked=True)
        if self.objective.needs_reference and self.reference is not None:
            logp_ref = self.reference.forward_logp(batch, temperature=temperature, only_masked=True)
        if self.critic is not None:
            values = self.critic.forward_values(batch)
        return BatchScores(logp_prox=logp_prox, logp_ref=logp_ref, values=values)

    def score_by_teacher(self, number: int, batch: DividedBatch) -> TeacherScores:
        """Return what one of the teachers that are here says about its rows, [S, L, ...]; 0 on others."""
        assert self.teachers is not None
        return self.teachers.score(number, batch, temperature=self.temperature)

    def train(self, batch: DividedBatch, counts: MinibatchCounts) -> tuple[TrainStats, TrainStats | None]:
        """Do one optimizer step of the actor, and one of the critic if there is one."""
        self._require_awake()
        batch = self.actor.receive(batch)
        stats = self._train_actor(batch, counts)
        return stats, None if self.critic is None else self._train_critic(self.critic, batch, counts)

    def weights(self) -> Mapping[str, Tensor]:
        """Return what rollouts get; see `TrainingEngine.weights`."""
        return self.actor.weights()

    def publish(self, version: int) -> Mapping[str, Tensor]:
        """Return the same, as `version`."""
        self.actor.set_version(version)
        return self.weights()

    def open_streams(self) -> Mapping[str, Tensor]:
        """Plan how weights are streamed; return the parameters without memory. Called by all ranks together."""
        from areal.trainer.shard_streams import RankStreams

        self._streams = RankStreams(self.actor, self.config.weights, served_dtype=self.config.servers.dtype)
        return self._streams.outline

    @property
    def opened_streams(self) -> RankStreams:
        """What `open_streams` made."""
        assert self._streams is not None, "open_streams comes first"
        return self._streams

    def set_version(self, version: int) -> None:
        """Note that the present weights are `version`, which is streamed and not handed out."""
        self.actor.set_version(version)
        self.opened_streams.published(version)

    def stream_weights(self, order: StreamOrder) -> StreamOutcome | None:
        """Do this rank's part of streaming the present weights; see `areal.infra.weights.shards`."""
        return self.opened_streams.stream(order)

    def forward_logp(self, batch: DividedBatch) -> Tensor:
        """See `areal.api.TrainEngine`: of the actor."""
        self._require_awake()
        return self.actor.forward_logp(batch)

    def sleep(self) -> None:
        """Move everything to host memory: servers get the device. Weights and states can be read all the same."""
        self._lent.give()

    def wake(self) -> None:
        """Undo `sleep`."""
        self._lent.take_back()

    @property
    def asleep_bytes(self) -> int:
        """What this process has of the device now."""
        return self._lent.staying_bytes

    @property
    def moved_bytes(self) -> int:
        """What `sleep` moved to host memory, the last time."""
        return self._lent.moved_bytes

    def _device_tensors(self) -> list[Tensor]:
        frozen = self.reference.device_tensors() if isinstance(self.reference, FrozenModel) else []
        return [*self.actor.device_tensors(), *(self.critic.device_tensors() if self.critic else ()), *frozen]

    def _require_awake(self) -> None:
        if self._lent.is_lent:
            raise EngineError("the learner is asleep and servers have its device: it scores and trains nothing now")

    def export(self, folder: Path) -> None:
        """Write the trained actor."""
        export_model(self.actor, self.config, folder)

    @property
    def temperature(self) -> float:
        """Sampling temperature, which the trainer's softmax must share. Greedy sampling records temperature 1."""
        return 1.0 if self.config.gconfig.greedy else self.config.gconfig.temperature

    def _train_actor(self, minibatch: DividedBatch, counts: MinibatchCounts) -> TrainStats:
        version = self.actor.version

        def loss_fn(logp: Tensor, entropy: Tensor | None, micro: PaddedBatch) -> LossOutput:
            if micro.logp_prox is None or micro.advantages is None:
                raise EngineError("update of a batch that was not prepared; call prepare first")
            output = self.objective.loss(
                logp,
                logp_prox=micro.logp_prox,
                logp_behave=micro.logp_behave,
                logp_ref=micro.logp_ref,
                advantages=micro.advantages,
                mask=micro.loss_mask,
                groups=micro.groups,
                samples=micro.samples,
                denominators=counts.denominators,
                entropy=entropy,
            )
            if isinstance(micro, DistilledBatch) and counts.distilled is not None:
                distilled = self._distil(logp, micro, counts.distilled)
                output = LossOutput(loss=output.loss + distilled.loss, metrics={**output.metrics, **distilled.metrics})
            if counts.fresh_tokens is None:
                return output
            sums = sampler_mismatch(
                logp,
                micro.logp_behave,
                mask=micro.loss_mask,
                fresh=micro.versions == version,
                num_tokens=counts.denominators.tokens,
                num_fresh=counts.fresh_tokens,
            )
            return replace(output, metrics={**output.metrics, **sums})

        return self.actor.train_batch(minibatch, loss_fn, temperature=self.temperature, with_entropy=True)

    def _distil(self, logp: Tensor, micro: DistilledBatch, denominators: Denominators) -> LossOutput:
        """Loss towards the teachers. denominators: of the minibatch."""
        assert self.config.distillation is not None, "only teachers make such a batch"
        assert self.teachers is not None
        return self.config.distillation.loss.loss(
            logp,
            teacher_logp=micro.teacher_logp,
            logp_anchor=micro.logp_behave,
            mask=micro.loss_mask,
            denominators=denominators,
            groups=micro.groups,
            samples=micro.samples,
            aggregation=self.objective.aggregation,
            candidate_logp=micro.candidate_logp,
            teacher_candidate_logp=micro.candidate_teacher_logp,
            complete=self.teachers.complete,
        )

    def _train_critic(self, critic: TrainingEngine, minibatch: DividedBatch, counts: MinibatchCounts) -> TrainStats:
        def loss_fn(values: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            if micro.values is None or micro.returns is None:
                raise EngineError("critic update on a batch that was not prepared with values and returns")
            return value_loss(
                values,
                old_values=micro.values,
                returns=micro.returns,
                mask=micro.loss_mask,
                denominators=counts.critic,
            )

        return critic.train_batch(minibatch, loss_fn)


def build_models(config: PPOConfig, tokenizer: Any, total_steps: int) -> PolicyModels:
    """Actor, and critic and reference where the objective asks for them. total_steps: training steps of the run."""
    objective = config.objective.build()
    steps = total_steps * config.objective.num_minibatches
    critic = None
    if config.critic is not None:
        critic = build_engine(config, tokenizer, settings=config.critic, total_steps=steps, head=ValueModel)
    actor = build_engine(config, tokenizer, settings=config.actor, total_steps=steps)
    reference: LogpScorer | None = None
    if objective.needs_reference and actor.ranks.is_alone:
        # Of the actor's own model: device and dtype are then the same, and so are the first step's log-probabilities.
        reference = FrozenModel.copy_of(actor.model, config=config.actor)
    elif objective.needs_reference:
        reference = build_scorer(config, tokenizer)
    teachers = None
    if config.distillation is not None:
        from areal.trainer.teachers import build_local_teachers

        teachers = build_local_teachers(config, config.distillation, tokenizer, student=actor.model)
    return PolicyModels(
        config=config, objective=objective, actor=actor, critic=critic, reference=reference, teachers=teachers
    )
