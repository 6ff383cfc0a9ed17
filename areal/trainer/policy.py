"""The trained policy of an RL run: its parts on every rank, and what rank 0 gives to the rollouts of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.engine.train.runner import FrozenModel
from areal.models.value_head import ValueModel
from areal.trainer.assembly import load_model
from areal.trainer.engines import build_engine, build_scorer
from areal.trainer.learner import PolicyLearner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.trainer.config import PPOConfig
    from areal.trainer.engines import Scorer
    from areal.trainer.rank_group import Distributed


def build_learner(config: PPOConfig, tokenizer: Any, total_steps: int) -> PolicyLearner:
    """Actor, and critic and reference where the objective asks for them. total_steps: training steps of the run."""
    objective = config.objective.build()
    steps = total_steps * config.objective.num_minibatches
    critic = None
    if config.critic is not None:
        critic = build_engine(config, tokenizer, settings=config.critic, total_steps=steps, head=ValueModel)
    actor = build_engine(config, tokenizer, settings=config.actor, total_steps=steps)
    reference: Scorer | None = None
    if objective.needs_reference and actor.ranks.is_alone:
        # Of the actor's own model: device and dtype are then the same, and so are the first step's log-probabilities.
        reference = FrozenModel.copy_of(actor.model, config=config.actor)
    elif objective.needs_reference:
        reference = build_scorer(config, tokenizer)
    return PolicyLearner(config=config, objective=objective, actor=actor, critic=critic, reference=reference)


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
        dtype: torch.dtype = getattr(torch, self._config.actor.dtype)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        if self._config.actor.lora is not None:
            from areal.engine.hf.lora import add_lora

            add_lora(model, self._config.actor.lora, dtype=dtype)
        from areal.engine.embedded.engine import replace_weights

        frozen = frozenset(name for name, value in model.named_parameters() if not value.requires_grad)
        replace_weights(model, self.weights(), frozen=frozen)
        return model
