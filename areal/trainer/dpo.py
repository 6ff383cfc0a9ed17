"""Learning a policy from preference pairs: DPO and its relatives (`areal.algorithm.preference`).

The reference model scores every pair that the run will visit before the first step; then only its numbers are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.algorithm.preference import preference_loss
from areal.trainer.assembly import EngineStates, build_engine, build_scorer, export_model
from areal.trainer.reference_scores import ReferenceScores
from areal.trainer.row_loop import RowTrainer
from areal.trainer.rows import collate_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LossOutput, PaddedBatch, PairedBatch, TrainStats
    from areal.dataset.loading import ShuffledRows
    from areal.engine.train.divided import DividedBatch
    from areal.trainer.assembly import LogpScorer
    from areal.trainer.config import DPOConfig
    from areal.trainer.rank_group import RankGroup
    from areal.trainer.session import RunSession


class DPOLearner:
    """Raises the probability of preferred answers over that of the others. The part of a run on every rank."""

    def __init__(self, config: DPOConfig, tokenizer: Any, total_steps: int) -> None:
        self.config = config
        self.settings = config.preference
        self.engine = build_engine(config, tokenizer, settings=config.actor, total_steps=total_steps)
        self.states = EngineStates({"actor": self.engine})

    def learn(self, batch: DividedBatch) -> TrainStats:
        """Do one optimizer step."""
        num_pairs = len(batch.lengths) // 2

        def loss_fn(logp: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return preference_loss(logp, batch=micro, settings=self.settings, num_pairs=num_pairs)

        return self.engine.train_batch(batch, loss_fn)

    def score(self, batch: DividedBatch) -> Tensor:
        """Log-probabilities of the answers' tokens."""
        return _score(self.engine, batch)

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        export_model(self.engine, self.config, folder)


class DPOTrainer(RowTrainer["DPOConfig", DPOLearner]):
    """Trains on pairs, with what a frozen reference thinks of them."""

    def __init__(self, config: DPOConfig, session: RunSession, group: RankGroup | None = None) -> None:
        super().__init__(config, session, group, DPOLearner)
        self.engine = self.learner.local.engine
        self._references: dict[str, ReferenceScores] = {}
        if self.learner.local.settings.uses_reference:
            datasets = {"train_dataset": self.rows, "valid_dataset": self.valid}
            self._references = {
                name: ReferenceScores(rows, name=name) for name, rows in datasets.items() if rows is not None
            }
        if session.resumed is not None and self._references:
            state = session.resumed.load("reference")
            for name in self._references.keys() & state.keys():
                self._references[name].load_state_dict(state[name])

    def prepare(self) -> None:
        """Have the reference score every row that is still to be visited and was not yet."""
        size, steps = self.config.batch_size, self.total_steps
        visits = {"train_dataset": range(self.session.first_step * size, steps * size)}
        if self.valid is not None:
            visits["valid_dataset"] = range(min(len(self.valid), self.config.eval_rows))
        missing = {name: scores.missing(visits[name]) for name, scores in self._references.items()}
        if not any(missing.values()):
            return
        # The trained model is its own reference while it is untouched; later, or for another one, it is loaded for now.
        reference = None
        if self.engine.num_steps or self.config.reference_path:
            reference = self.group.create(build_scorer, self.config, self.tokenizer, self.config.reference_path)

        def score(batch: PairedBatch) -> Tensor:
            divided = self.engine.divide(batch)
            return self.learner.run(DPOLearner.score, divided) if reference is None else reference.run(_score, divided)

        for name, scores in self._references.items():
            scores.compute(missing[name], score, batch_size=size, stop=lambda: self.session.stop.requested)
        if reference is not None:
            reference.drop()

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """Do one optimizer step."""
        batch = self._batch("train_dataset", self.rows, ordinals)
        return self.learner.run(DPOLearner.learn, self.engine.divide(batch)), float(batch.lengths.sum())

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Return loss and metrics of the validation pairs."""
        valid = self.valid
        assert valid is not None, "only asked with validation rows"

        def terms(ordinals: range) -> dict[str, Tensor]:
            batch = self._batch("valid_dataset", valid, ordinals)
            logp = self.learner.run(DPOLearner.score, self.engine.divide(batch))
            # `batch` is a part of what the means are over.
            output = preference_loss(logp, batch=batch, settings=self.config.preference, num_pairs=count)
            return {"loss": output.loss, **output.metrics}

        return self.evaluate_in_parts(count, terms)

    def states(self) -> Mapping[str, Any]:
        """Return the reference's numbers."""
        return {"reference": {name: scores.state_dict() for name, scores in self._references.items()}}

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        self.learner.run(DPOLearner.export, folder)

    def _batch(self, name: str, rows: ShuffledRows, ordinals: range) -> PairedBatch:
        if name in self._references:
            return self._references[name].batch(ordinals)
        return collate_pairs([rows.row(ordinal) for ordinal in ordinals], numbers=ordinals)


def _score(scorer: LogpScorer, batch: DividedBatch) -> Tensor:
    return scorer.forward_logp(batch, only_masked=True)
