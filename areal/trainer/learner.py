"""Turn trajectories into optimizer steps: old and reference log-probabilities, advantages, minibatches, updates.

Knows models and the objective; knows nothing of rollouts, files or steps of a run. Rank 0 alone does what is about a
whole batch: it collates trajectories, computes advantages, cuts minibatches and counts their denominators. The models
of every rank (`areal.trainer.policy_models`) then score and train the rows that each is given.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.advantages import overlong_filter, overlong_penalty
from areal.algorithm.aggregations import count
from areal.algorithm.groups import sums_of_samples
from areal.algorithm.packing import collate, select, split_groups
from areal.algorithm.tokens import SAMPLER_PREFIX, mismatch_summary, sampler_mismatch
from areal.api import DistilledBatch, PaddedBatch, TrainStats
from areal.engine.precision import concrete_dtype
from areal.infra.metrics import names
from areal.trainer.assembly import load_model
from areal.trainer.policy_models import BatchScores, MinibatchCounts, PolicyModels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from areal.api import TeacherScores, Trajectory
    from areal.engine.train.divided import DividedBatch
    from areal.infra.weights.layout import StreamLayout
    from areal.infra.weights.shards import StreamingRanks
    from areal.infra.weights.stream import StreamOrder, StreamOutcome
    from areal.trainer.config import PPOConfig
    from areal.trainer.rank_group import Distributed


class PolicyLearner:
    """Learns from trajectories with the models of all ranks. On rank 0."""

    def __init__(self, models: Distributed[PolicyModels]) -> None:
        self.models = models
        self.config = models.local.config
        self.objective = models.local.objective
        self.actor = models.local.actor
        """Rank 0's own."""

    def prepare(
        self,
        trajectories: Sequence[Trajectory],
        teachers: Sequence[int] = (),
        served: TeacherScores | None = None,
    ) -> PaddedBatch:
        """Compute what the update needs of the weights *before* it. Tensors stay on the CPU.

        teachers: number of each trajectory's teacher; served: what teachers on servers say. Both for distillation only.
        """
        batch = self._shape(collate(trajectories, with_samples=True))
        # Compares the rows of a whole batch: only where somebody computes with them, and once.
        divide = functools.cache(functools.partial(self.actor.divide, batch))
        scores = BatchScores()
        if self._recomputes_prox() or self.objective.needs_reference or self.objective.needs_critic:
            scores = self.models.run(PolicyModels.score, divide(), with_prox=self._recomputes_prox())
        batch = replace(
            batch,
            logp_prox=batch.logp_behave if scores.logp_prox is None else scores.logp_prox,
            logp_ref=scores.logp_ref,
            values=scores.values,
        )
        if self.models.local.teachers is not None:
            batch = self._taught(batch, divide, teachers, served)
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
            minibatch = trained if len(parts) == 1 else select(trained, indices)
            # Without a forward of its own, the first minibatch's says how sampler and trainer differ.
            compare = number == 0 and not self._recomputes_prox()
            stats, of_critic = self.models.run(
                PolicyModels.train, self.actor.divide(minibatch), self._counts(minibatch, compare=compare)
            )
            actor_stats.append(stats)
            critic_stats += [] if of_critic is None else [of_critic]
        metrics = _merge(actor_stats, "train") | _merge(critic_stats, "critic")
        compared = {key: metrics.pop(key) for key in list(metrics) if key.startswith(f"train/{SAMPLER_PREFIX}")}
        sums = {key.removeprefix("train/"): value for key, value in compared.items()} or self._compare(batch)
        metrics |= {f"{names.MISMATCH_PREFIX}{key}": value for key, value in mismatch_summary(sums).items()}
        metrics[names.KL] = metrics["train/kl_ref" if self.objective.needs_reference else "train/approx_kl"]
        return metrics | self._describe(batch)

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
                sums_of_samples(batch.loss_mask.sum(dim=1), batch.samples),
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
                batch.rewards,
                batch.logp_prox,
                batch.logp_ref,
                mask=batch.loss_mask,
                turn_rewards=batch.turn_rewards,
            )
        found = self.objective.advantages(
            batch.rewards,
            batch.groups,
            mask=batch.loss_mask,
            values=batch.values,
            token_rewards=token_rewards,
            truncated=batch.truncated,
            turn_ids=batch.turn_ids,
            turn_rewards=batch.turn_rewards,
            samples=batch.samples,
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

    def _taught(
        self,
        batch: PaddedBatch,
        divide: Callable[[], DividedBatch],
        teachers: Sequence[int],
        served: TeacherScores | None,
    ) -> DistilledBatch:
        """Return the batch with what its teachers say."""
        assert self.models.local.teachers is not None

        def score(number: int, rows: list[int]) -> TeacherScores:
            return self.models.run(PolicyModels.score_by_teacher, number, divide().limited_to(rows))

        return self.models.local.teachers.combine(batch, teachers, served=served, score=score)

    def _counts(self, minibatch: PaddedBatch, *, compare: bool) -> MinibatchCounts:
        """compare: also measure how the sampler's log-probabilities differ from those of the update's forward pass."""
        denominators = self.objective.denominators(
            mask=minibatch.loss_mask,
            groups=minibatch.groups,
            samples=minibatch.samples,
            logp_prox=minibatch.logp_prox,
            logp_behave=minibatch.logp_behave,
        )
        fresh = minibatch.versions == self.actor.version
        return MinibatchCounts(
            denominators=denominators,
            critic=count(minibatch.loss_mask),
            distilled=(
                count(minibatch.loss_mask, minibatch.groups, samples=minibatch.samples)
                if isinstance(minibatch, DistilledBatch)
                else None
            ),
            fresh_tokens=float((minibatch.loss_mask * fresh).sum()) if compare else None,
        )

    def _describe(self, batch: PaddedBatch) -> dict[str, float]:
        """Properties of the batch itself."""
        lengths = batch.loss_mask.sum(dim=1)
        sampled = batch.versions[batch.loss_mask.bool()]
        ages = self.actor.version - sampled.to(torch.float32)
        totals = batch.rewards
        if batch.turn_rewards is not None:
            totals = totals + sums_of_samples(batch.turn_rewards.sum(dim=1), batch.samples)
        rewards: dict[int, list[float]] = {}
        for group, reward in zip(batch.groups.tolist(), totals.tolist(), strict=True):
            rewards.setdefault(group, []).append(reward)
        compared = [len(set(values)) == 1 for values in rewards.values() if len(values) > 1]
        equal = {names.ZERO_VARIANCE_SHARE: sum(compared) / len(compared)} if compared else {}
        return {
            **equal,
            **self._describe_teachers(batch),
            names.REWARD_MEAN: float(totals.mean()),
            names.REWARD_STD: float(totals.std(correction=0)),
            names.REWARD_MIN: float(totals.min()),
            names.REWARD_MAX: float(totals.max()),
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


class TrainedPolicy:
    """The actor as inference engines know it, on rank 0: they get its weights and compare with its scores."""

    def __init__(self, config: PPOConfig, models: Distributed[PolicyModels], tokenizer: Any) -> None:
        self._config, self._models, self._tokenizer = config, models, tokenizer
        self._outline: Mapping[str, Tensor] | None = None
        """Of weights that never are in one place."""
        if config.weights.carrier == "shards" and config.rollout.engine != "embedded":
            self._outline = models.run(PolicyModels.open_streams)

    @property
    def model(self) -> nn.Module:
        """The live model where one process has all of it. Else, for servers, rank 0's part of it, which tells sizes and
        device; for an engine in this process, which copies it, a new one with the present weights.
        """
        return self.whole_model() if self._config.rollout.engine == "embedded" else self._models.local.actor.model

    def whole_model(self) -> nn.Module:
        """Return the live model where one process has all of it, else a new one with the present weights."""
        actor = self._models.local.actor
        return actor.model if actor.ranks.is_alone and actor.model is not None else self._assembled()

    def weights(self) -> Mapping[str, Tensor]:
        """See `TrainEngine.weights`: of the whole model; without memory where they are streamed from shards."""
        return self._models.run(PolicyModels.weights) if self._outline is None else self._outline

    def publish(self, version: int) -> Mapping[str, Tensor]:
        """Return the same, as those of `version`."""
        if self._outline is None:
            return self._models.run(PolicyModels.publish, version)
        self._models.run(PolicyModels.set_version, version)
        return self._outline

    def streams(self) -> StreamingRanks | None:
        """See `ServedPolicy.streams`."""
        return None if self._outline is None else LedStreams(self._models)

    def forward_logp(self, batch: PaddedBatch) -> Tensor:
        """See `TrainEngine.forward_logp`."""
        return self._models.run(PolicyModels.forward_logp, self._models.local.actor.divide(batch))

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
        replace_weights(model, self.weights(), version=self._models.local.actor.version, frozen=frozen)
        return model


class LedStreams:
    """The ranks that stream weights, as rank 0 leads them: `areal.infra.weights.shards.StreamingRanks`."""

    def __init__(self, models: Distributed[PolicyModels]) -> None:
        self._models = models

    def layout(self) -> StreamLayout:
        """See `StreamingRanks`."""
        return self._models.local.opened_streams.model.layout

    def is_at(self, version: int) -> bool:
        """See `StreamingRanks`."""
        return self._models.local.opened_streams.is_at(version)

    def stream(self, order: StreamOrder, store: Any) -> StreamOutcome | None:
        """See `StreamingRanks`."""
        self._models.local.opened_streams.store = store
        return self._models.run(PolicyModels.stream_weights, order)
