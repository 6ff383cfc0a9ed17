"""Turn trajectories into optimizer steps: old and reference log-probabilities, advantages, minibatches, updates.

Knows engines and the objective; knows nothing of rollouts, files or steps of a run. `PolicyLearner` is on every rank;
`Policy` is what rank 0 gives to the rollouts of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.advantages import overlong_filter, overlong_penalty
from areal.algorithm.aggregations import count
from areal.algorithm.blocks import block_name
from areal.algorithm.packing import collate, select, split_groups
from areal.algorithm.supervised import value_loss
from areal.algorithm.tokens import SAMPLER_PREFIX, mismatch_summary, sampler_mismatch
from areal.api import ConfigError, DistilledBatch, EngineError, LossOutput, PaddedBatch, TrainStats
from areal.engine.precision import concrete_dtype
from areal.engine.train.runner import FrozenModel
from areal.infra.metrics import names
from areal.models.value_head import ValueModel
from areal.trainer.assembly import EngineStates, build_engine, build_scorer, export_model, load_model
from areal.trainer.teachers import build_local_teachers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from areal.algorithm.aggregations import Denominators
    from areal.algorithm.objective import Objective
    from areal.api import TeacherScores, Trajectory
    from areal.engine.train.engine import TrainingEngine
    from areal.trainer.assembly import LogpScorer
    from areal.trainer.config import PPOConfig
    from areal.trainer.rank_group import Distributed
    from areal.trainer.teachers import LocalTeachers


class PolicyLearner:
    """Owns the actor and, when the objective asks for them, critic and reference. The part of a run on every rank."""

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
        engines = {"actor": actor} if critic is None else {"actor": actor, "critic": critic}
        # Of the trained models; the reference is rebuilt from the run's start.
        self.states = EngineStates(engines, together="learner")

    def prepare(
        self,
        trajectories: Sequence[Trajectory],
        teachers: Sequence[int] = (),
        served: TeacherScores | None = None,
    ) -> PaddedBatch:
        """Compute what the update needs of the weights *before* it. Tensors stay on the CPU.

        teachers: number of each trajectory's teacher; served: what teachers on servers say. Both for distillation only.
        """
        batch = self._shape(collate(trajectories))
        if self._recomputes_prox():
            logp_prox = self.actor.forward_logp(batch, temperature=self._temperature, only_masked=True)
        else:
            logp_prox = batch.logp_behave
        batch = replace(batch, logp_prox=logp_prox)
        if self.objective.needs_reference and self.reference is not None:
            batch = replace(
                batch, logp_ref=self.reference.forward_logp(batch, temperature=self._temperature, only_masked=True)
            )
        if self.teachers is not None:
            batch = self.teachers.score(batch, teachers, served=served, temperature=self._temperature)
        if self.critic is not None:
            batch = replace(batch, values=self.critic.forward_values(batch))
        return self._with_advantages(batch)

    def update(self, batch: PaddedBatch) -> dict[str, float]:
        """Run the minibatches of one prepared batch; returns metrics averaged over them."""
        trained = batch
        if self.config.objective.mask_truncated:
            trained = replace(batch, loss_mask=overlong_filter(batch.loss_mask, batch.truncated))
        parts = split_groups(batch.groups, self.config.objective.num_minibatches)
        actor_stats: list[TrainStats] = []
        critic_stats: list[TrainStats] = []
        for number, indices in enumerate(parts):
            minibatch = select(trained, indices)
            # Without a forward of its own, the first minibatch's says how sampler and trainer differ.
            compare = number == 0 and not self._recomputes_prox()
            actor_stats.append(self._update_actor(minibatch, compare=compare))
            if self.critic is not None:
                critic_stats.append(self._update_critic(self.critic, minibatch))
        metrics = _merge(actor_stats, "train") | _merge(critic_stats, "critic")
        compared = {key: metrics.pop(key) for key in list(metrics) if key.startswith(f"train/{SAMPLER_PREFIX}")}
        sums = {key.removeprefix("train/"): value for key, value in compared.items()} or self._compare(batch)
        metrics |= {f"{names.MISMATCH_PREFIX}{key}": value for key, value in mismatch_summary(sums).items()}
        metrics[names.KL] = metrics["train/kl_ref" if self.reference is not None else "train/approx_kl"]
        return metrics | self._describe(batch)

    def weights(self) -> Mapping[str, Tensor]:
        """Return what rollouts get; see `TrainingEngine.weights`."""
        return self.actor.weights()

    def publish(self, version: int) -> Mapping[str, Tensor]:
        """Return the same, as `version`."""
        self.actor.set_version(version)
        return self.weights()

    def forward_logp(self, batch: PaddedBatch) -> Tensor:
        """See `areal.api.TrainEngine`: of the actor."""
        return self.actor.forward_logp(batch)

    def export(self, folder: Path) -> None:
        """Write the trained actor."""
        export_model(self.actor, self.config, folder)

    @property
    def _temperature(self) -> float:
        """Sampling temperature, which the trainer's softmax must share. Greedy sampling records temperature 1."""
        return 1.0 if self.config.gconfig.greedy else self.config.gconfig.temperature

    def _recomputes_prox(self) -> bool:
        mode = self.config.objective.prox_logp
        if mode != "auto":
            return mode == "recompute"
        return self.objective.compares_with_sampler or self.config.filters_samples

    def _shape(self, batch: PaddedBatch) -> PaddedBatch:
        """Reward shaping and masks that the configuration asks for."""
        settings = self.config.objective
        if settings.overlong_buffer:
            rewards = overlong_penalty(
                batch.rewards,
                batch.loss_mask.sum(dim=1),
                max_length=self.config.gconfig.max_new_tokens,
                buffer=settings.overlong_buffer,
                factor=settings.overlong_penalty,
            )
            batch = replace(batch, rewards=rewards)
        return batch

    def _with_advantages(self, batch: PaddedBatch) -> PaddedBatch:
        token_rewards = None
        if self.objective.needs_token_rewards and batch.logp_ref is not None and batch.logp_prox is not None:
            token_rewards = self.objective.token_rewards(
                batch.rewards, batch.logp_prox, batch.logp_ref, mask=batch.loss_mask
            )
        found = self.objective.advantages(
            batch.rewards,
            batch.groups,
            mask=batch.loss_mask,
            values=batch.values,
            token_rewards=token_rewards,
            truncated=batch.truncated,
            turn_ids=batch.turn_ids,
        )
        return replace(batch, advantages=found.advantages, returns=found.returns)

    def _compare(self, batch: PaddedBatch) -> dict[str, float]:
        """Sampler against trainer over a batch whose log-probabilities were recomputed."""
        assert batch.logp_prox is not None, "update comes after prepare"
        fresh = batch.versions == self.actor.version
        sums = sampler_mismatch(
            batch.logp_prox,
            batch.logp_behave,
            mask=batch.loss_mask,
            fresh=fresh,
            num_tokens=float(batch.loss_mask.sum()),
            num_fresh=float((batch.loss_mask * fresh).sum()),
        )
        return {key: float(value) for key, value in sums.items()}

    def _update_actor(self, minibatch: PaddedBatch, *, compare: bool) -> TrainStats:
        """compare: also measure how the sampler's log-probabilities differ from those of this forward."""
        denominators = self.objective.denominators(
            mask=minibatch.loss_mask,
            groups=minibatch.groups,
            logp_prox=minibatch.logp_prox,
            logp_behave=minibatch.logp_behave,
        )
        counted = count(minibatch.loss_mask, minibatch.groups) if isinstance(minibatch, DistilledBatch) else None
        version = self.actor.version
        num_fresh = float((minibatch.loss_mask * (minibatch.versions == version)).sum())

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
                denominators=denominators,
                entropy=entropy,
            )
            if isinstance(micro, DistilledBatch) and counted is not None:
                distilled = self._distil(logp, micro, counted)
                output = LossOutput(loss=output.loss + distilled.loss, metrics={**output.metrics, **distilled.metrics})
            if not compare:
                return output
            sums = sampler_mismatch(
                logp,
                micro.logp_behave,
                mask=micro.loss_mask,
                fresh=micro.versions == version,
                num_tokens=denominators.tokens,
                num_fresh=num_fresh,
            )
            return replace(output, metrics={**output.metrics, **sums})

        return self.actor.train_batch(minibatch, loss_fn, temperature=self._temperature, with_entropy=True)

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
            aggregation=self.objective.aggregation,
            candidate_logp=micro.candidate_logp,
            teacher_candidate_logp=micro.candidate_teacher_logp,
            complete=self.teachers.complete,
        )

    def _update_critic(self, critic: TrainingEngine, minibatch: PaddedBatch) -> TrainStats:
        denominators = count(minibatch.loss_mask)

        def loss_fn(values: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            if micro.values is None or micro.returns is None:
                raise EngineError("critic update on a batch that was not prepared with values and returns")
            return value_loss(
                values,
                old_values=micro.values,
                returns=micro.returns,
                mask=micro.loss_mask,
                denominators=denominators,
            )

        return critic.train_batch(minibatch, loss_fn)

    def _describe(self, batch: PaddedBatch) -> dict[str, float]:
        """Properties of the batch itself."""
        lengths = batch.loss_mask.sum(dim=1)
        sampled = batch.versions[batch.loss_mask.bool()]
        ages = self.actor.version - sampled.to(torch.float32)
        rewards: dict[int, list[float]] = {}
        for group, reward in zip(batch.groups.tolist(), batch.rewards.tolist(), strict=True):
            rewards.setdefault(group, []).append(reward)
        compared = [len(set(values)) == 1 for values in rewards.values() if len(values) > 1]
        equal = {names.ZERO_VARIANCE_SHARE: sum(compared) / len(compared)} if compared else {}
        return {
            **equal,
            **self._describe_teachers(batch),
            names.REWARD_MEAN: float(batch.rewards.mean()),
            names.REWARD_STD: float(batch.rewards.std(correction=0)),
            names.REWARD_MIN: float(batch.rewards.min()),
            names.REWARD_MAX: float(batch.rewards.max()),
            names.LENGTH_MEAN: float(lengths.mean()),
            names.LENGTH_MAX: float(lengths.max()),
            names.TRUNCATED_FRACTION: float(batch.truncated.float().mean()),
            names.STALENESS_MEAN: float(ages.mean()) if len(ages) else 0.0,
            names.STALENESS_MAX: float(ages.max()) if len(ages) else 0.0,
            "tokens/sampled": float(lengths.sum()),
            "tokens/total": float(batch.lengths.sum()),
        }

    def _describe_teachers(self, batch: PaddedBatch) -> dict[str, float]:
        """Return how far the policy is from each teacher, before the update: KL(student, teacher) per token, in
        nats."""
        if not isinstance(batch, DistilledBatch) or batch.logp_prox is None or self.config.distillation is None:
            return {}
        found: dict[str, float] = {}
        valid = (batch.loss_mask > 0) & batch.teacher_logp.isfinite()
        difference = batch.logp_prox - batch.teacher_logp
        for number, name in enumerate(self.config.distillation.names):
            chosen = valid & (batch.teachers == number)[:, None]
            if bool(chosen.any()):
                found[f"{names.DISTILLATION_PREFIX}{name}/reverse_kl"] = float(difference[chosen].mean())
                found[f"{names.DISTILLATION_PREFIX}{name}/tokens"] = float(chosen.sum())
        return found


def _merge(stats: Sequence[TrainStats], prefix: str) -> dict[str, float]:
    """Mean over minibatches, except counts and extremes."""
    if not stats:
        return {}
    merged = {
        f"{prefix}/loss": sum(item.loss for item in stats) / len(stats),
        f"{prefix}/grad_norm": sum(item.grad_norm for item in stats) / len(stats),
        f"{prefix}/learning_rate": stats[-1].learning_rate,
        f"{prefix}/skipped_steps": float(sum(not item.stepped for item in stats)),
        f"{prefix}/micro_batches": float(sum(item.num_micro_batches for item in stats)),
    }
    for key in sorted({key for item in stats for key in item.metrics}):
        values = [item.metrics[key] for item in stats if key in item.metrics]
        if key.endswith("_max"):
            merged[f"{prefix}/{key}"] = max(values)
        elif key.endswith("_min"):
            merged[f"{prefix}/{key}"] = min(values)
        elif key.endswith("_count"):
            merged[f"{prefix}/{key}"] = sum(values)
        else:
            merged[f"{prefix}/{key}"] = sum(values) / len(values)
    return merged


def build_learner(config: PPOConfig, tokenizer: Any, total_steps: int) -> PolicyLearner:
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
    return PolicyLearner(
        config=config,
        objective=objective,
        actor=actor,
        critic=critic,
        reference=reference,
        teachers=build_local_teachers(config, tokenizer, student=actor.model),
    )


class Policy:
    """The actor as inference engines know it, on rank 0: they get its weights and compare with its scores."""

    def __init__(self, config: PPOConfig, learner: Distributed[PolicyLearner], tokenizer: Any) -> None:
        self._config, self._learner, self._tokenizer = config, learner, tokenizer

    @property
    def model(self) -> nn.Module:
        """The live model where one process has all of it. Else, for servers, rank 0's part of it, which tells sizes and
        device; for an engine in this process, which copies it, a new one with the present weights.
        """
        return self.whole_model() if self._config.rollout.engine == "embedded" else self._learner.local.actor.model

    def whole_model(self) -> nn.Module:
        """Return the live model where one process has all of it, else a new one with the present weights."""
        actor = self._learner.local.actor
        return actor.model if actor.ranks.is_alone else self._assembled()

    def weights(self) -> Mapping[str, Tensor]:
        """See `TrainEngine.weights`: of the whole model."""
        return self._learner.run(PolicyLearner.weights)

    def publish(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights, as those of `version`."""
        return self._learner.run(PolicyLearner.publish, version)

    def forward_logp(self, batch: PaddedBatch) -> Tensor:
        """See `TrainEngine.forward_logp`."""
        return self._learner.run(PolicyLearner.forward_logp, batch)

    def _assembled(self) -> nn.Module:
        model: nn.Module = load_model(self._config, self._tokenizer)
        dtype: torch.dtype = getattr(torch, concrete_dtype(self._config.actor))
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        if self._config.actor.lora is not None:
            from areal.engine.hf.lora import add_lora

            add_lora(model, self._config.actor.lora, dtype=dtype)
        from areal.engine.embedded.engine import replace_weights

        frozen = frozenset(name for name, value in model.named_parameters() if not value.requires_grad)
        replace_weights(model, self.weights(), version=self._learner.local.actor.version, frozen=frozen)
        return model
