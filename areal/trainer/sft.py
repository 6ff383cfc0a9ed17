"""Supervised fine-tuning: the same engine, checkpoints and metrics as RL, with a data loader in place of rollouts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal.algorithm.aggregations import count
from areal.algorithm.supervised import sft_loss
from areal.infra.metrics import names
from areal.trainer.assembly import EngineStates, build_engine, export_model
from areal.trainer.row_loop import RowTrainer
from areal.trainer.rows import collate_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.algorithm.aggregations import Denominators
    from areal.api import LossOutput, PaddedBatch, TrainStats
    from areal.engine.train.divided import DividedBatch
    from areal.trainer.config import SFTConfig
    from areal.trainer.rank_group import RankGroup
    from areal.trainer.session import RunSession


class SFTLearner:
    """Minimises the mean negative log-likelihood of the tokens with loss_mask 1. The part of a run on every rank."""

    def __init__(self, config: SFTConfig, tokenizer: Any, total_steps: int) -> None:
        self.config = config
        self.engine = build_engine(config, tokenizer, settings=config.actor, total_steps=total_steps)
        self.states = EngineStates({"actor": self.engine})

    def learn(self, batch: DividedBatch, denominators: Denominators) -> TrainStats:
        """Do one optimizer step. denominators: of the whole batch."""

        def loss_fn(logp: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return sft_loss(logp, mask=micro.loss_mask, denominators=denominators)

        stats = self.engine.train_batch(batch, loss_fn, smoothing=self.config.label_smoothing)
        if self.config.label_smoothing:
            # The engine's log-probabilities are smoothed, and so would this "likelihood" be.
            stats = replace(stats, metrics={})
        return stats

    def score(self, batch: DividedBatch) -> Tensor:
        """Log-probability of every token."""
        return self.engine.forward_logp(batch)

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        export_model(self.engine, self.config, folder)


class SFTTrainer(RowTrainer["SFTConfig", SFTLearner]):
    """Trains on prompts with answers."""

    def __init__(self, config: SFTConfig, session: RunSession, group: RankGroup | None = None) -> None:
        super().__init__(config, session, group, SFTLearner)
        self.engine = self.learner.local.engine

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """Do one optimizer step."""
        batch = collate_rows(self.rows, ordinals, images=self.images)
        stats = self.learner.run(SFTLearner.learn, self.engine.divide(batch), count(batch.loss_mask))
        return stats, float(batch.lengths.sum())

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Return the mean negative log-likelihood per target token of the validation rows."""
        assert self.valid is not None, "only asked with validation rows"
        batch = collate_rows(self.valid, range(count), images=self.images)
        logp = self.learner.run(SFTLearner.score, self.engine.divide(batch))
        return {names.EVAL_LOSS: -float((logp * batch.loss_mask).sum() / batch.loss_mask.sum().clamp(min=1))}

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        self.learner.run(SFTLearner.export, folder)
