"""Training a reward model on preference pairs: a decoder with one score per sequence, and the Bradley-Terry loss.

A reward model is a critic without a bias that is asked once per sequence (`areal.algorithm.scoring`), so that the
engine needs nothing of its own for it. Scores start at 0 for everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.algorithm import metrics as metric_functions
from areal.algorithm.preference import bradley_terry_loss
from areal.algorithm.scoring import final_scores
from areal.api import ConfigError
from areal.engine.train.engine import TrainingEngine
from areal.infra.metrics import names
from areal.models.reward_model import save_reward_model
from areal.models.value_head import ValueModel
from areal.trainer import row_loop
from areal.trainer.assembly import load_model
from areal.trainer.rows import collate_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LossOutput, PaddedBatch, PairedBatch, TrainStats
    from areal.dataset.prompt_source import ShuffledRows
    from areal.trainer.pair_config import RewardModelConfig
    from areal.trainer.session import RunSession


class RewardModelTrainer:
    """Scores preferred answers above the others.

    with open_session(config) as session:
        summary = RewardModelTrainer(config, session).train()
    """

    def __init__(self, config: RewardModelConfig, session: RunSession) -> None:
        """Raises ConfigError when margins are asked for that the rows do not have."""
        self.config = config
        self.session = session
        self.material = row_loop.gather(config)
        if config.use_margins and self.material.rows.row(0).get("margin") is None:
            raise ConfigError(
                f"use_margins is set, but the rows of train_dataset {config.train_dataset.name!r} have no column "
                f"'margin'; remove use_margins, or give the loader the column"
            )
        model = ValueModel(load_model(config, self.material.tokenizer), bias=False)
        self.engine = TrainingEngine(model, config=config.actor, total_steps=self.material.total_steps, is_critic=True)
        row_loop.restore(session, self.material, self.engine)

    def train(self) -> dict[str, Any]:
        """See `row_loop.train`."""
        return row_loop.train(self.config, self.session, self.material, self)

    def prepare(self) -> None:
        """Nothing has to be known."""

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """See `row_loop.Method`."""
        batch = _batch(self.material.rows, ordinals)

        def loss_fn(values: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return self._loss(values, micro, num_pairs=len(ordinals))

        # The marks are not read, so they are not counted.
        return self.engine.train_batch(batch, loss_fn), float(batch.lengths.sum() - batch.lengths.shape[0])

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Loss and metrics of the validation pairs, a step's worth at a time."""
        assert self.material.valid is not None, "only asked with validation rows"
        parts = []
        for start in range(0, count, self.config.batch_size):
            batch = _batch(self.material.valid, range(start, min(start + self.config.batch_size, count)))
            output = self._loss(self.engine.forward_values(batch), batch, num_pairs=count)
            parts.append({"loss": output.loss, **output.metrics})
        return {f"{names.EVAL_PREFIX}{key}": value for key, value in metric_functions.combine(parts).items()}

    def states(self) -> Mapping[str, Any]:
        """Engine and random generators are all there is."""
        return {}

    def export(self, folder: Path) -> None:
        """Write a sequence classifier with one label."""
        save_reward_model(self.engine.save_pretrained, folder, pad_token_id=self.material.tokenizer.pad_token_id)

    def _loss(self, values: Tensor, batch: PaddedBatch, *, num_pairs: int) -> LossOutput:
        return bradley_terry_loss(
            final_scores(values, batch.lengths),
            batch=batch,
            use_margins=self.config.use_margins,
            center_coef=self.config.center_coef,
            num_pairs=num_pairs,
        )


def _batch(rows: ShuffledRows, ordinals: range) -> PairedBatch:
    return collate_pairs([rows.row(ordinal) for ordinal in ordinals], numbers=ordinals, with_marks=True)
