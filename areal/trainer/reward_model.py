"""Training a reward model on preference pairs: a decoder with one score per sequence, and the Bradley-Terry loss.

A reward model is a critic without a bias that is asked once per sequence (`areal.algorithm.preference`), so that the
engine needs nothing of its own for it. Scores start at 0 for everything.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from areal.algorithm.preference import bradley_terry_loss, final_scores
from areal.api import ConfigError
from areal.models.reward_model import save_reward_model
from areal.models.value_head import ValueModel
from areal.trainer.assembly import EngineStates, build_engine
from areal.trainer.row_loop import RowTrainer
from areal.trainer.rows import collate_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LossOutput, PaddedBatch, PairedBatch, TrainStats
    from areal.dataset.loading import ShuffledRows
    from areal.engine.train.divided import DividedBatch
    from areal.trainer.config import RewardModelConfig
    from areal.trainer.rank_group import RankGroup
    from areal.trainer.session import RunSession


class RewardModelLearner:
    """Scores preferred answers above the others. The part of a run on every rank."""

    def __init__(self, config: RewardModelConfig, tokenizer: Any, total_steps: int) -> None:
        self.config = config
        head = partial(ValueModel, bias=False)
        self.engine = build_engine(config, tokenizer, settings=config.actor, total_steps=total_steps, head=head)
        self.states = EngineStates({"actor": self.engine})

    def learn(self, batch: DividedBatch) -> TrainStats:
        """Do one optimizer step."""
        num_pairs = len(batch.lengths) // 2

        def loss_fn(values: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return self.loss(values, micro, num_pairs=num_pairs)

        return self.engine.train_batch(batch, loss_fn)

    def score(self, batch: DividedBatch) -> Tensor:
        """Value of every token."""
        return self.engine.forward_values(batch)

    def save_critic(self, folder: Path) -> None:
        """Write the engine's model."""
        self.engine.save_pretrained(folder)

    def loss(self, values: Tensor, batch: PaddedBatch, *, num_pairs: int) -> LossOutput:
        """Loss and metrics of some pairs. num_pairs: that the means are over."""
        return bradley_terry_loss(
            final_scores(values, batch.lengths),
            batch=batch,
            use_margins=self.config.use_margins,
            center_coef=self.config.center_coef,
            num_pairs=num_pairs,
        )


class RewardModelTrainer(RowTrainer["RewardModelConfig", RewardModelLearner]):
    """Trains on pairs."""

    def __init__(self, config: RewardModelConfig, session: RunSession, group: RankGroup | None = None) -> None:
        super().__init__(config, session, group, RewardModelLearner)
        self.engine = self.learner.local.engine

    def check_rows(self) -> None:
        """Raise ConfigError when margins are asked for that the rows do not have."""
        if self.config.use_margins and self.rows.row(0).get("margin") is None:
            raise ConfigError(
                f"use_margins is set, but the rows of train_dataset {self.config.train_dataset.name!r} have no column "
                f"'margin'; remove use_margins, or give the loader the column"
            )

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """Do one optimizer step."""
        batch = _batch(self.rows, ordinals)
        # The marks are not read, so they are not counted.
        stats = self.learner.run(RewardModelLearner.learn, self.engine.divide(batch))
        return stats, float(batch.lengths.sum() - batch.lengths.shape[0])

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Return loss and metrics of the validation pairs."""
        valid = self.valid
        assert valid is not None, "only asked with validation rows"

        def terms(ordinals: range) -> dict[str, Tensor]:
            batch = _batch(valid, ordinals)
            values = self.learner.run(RewardModelLearner.score, self.engine.divide(batch))
            output = self.learner.local.loss(values, batch, num_pairs=count)
            return {"loss": output.loss, **output.metrics}

        return self.evaluate_in_parts(count, terms)

    def export(self, folder: Path) -> None:
        """Write a sequence classifier with one label."""
        pad_token_id = self.tokenizer.pad_token_id

        # All ranks write the critic; rank 0 alone makes a classifier of it.
        def save_critic(path: Path) -> None:
            self.learner.run(RewardModelLearner.save_critic, path)

        save_reward_model(save_critic, folder, pad_token_id=pad_token_id)


def _batch(rows: ShuffledRows, ordinals: range) -> PairedBatch:
    return collate_pairs([rows.row(ordinal) for ordinal in ordinals], numbers=ordinals, with_marks=True)
