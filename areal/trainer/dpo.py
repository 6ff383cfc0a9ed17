"""Learning a policy from preference pairs: DPO and its relatives (`areal.algorithm.preference`).

The reference model scores every pair that the run will visit before the first step; then only its numbers are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.algorithm.preference import preference_loss
from areal.algorithm.tokens import combine
from areal.infra.metrics import names
from areal.trainer import row_loop
from areal.trainer.assembly import EngineStates, build_engine, build_scorer, export_model
from areal.trainer.rank_group import RankGroup
from areal.trainer.reference_scores import ReferenceScores
from areal.trainer.rows import collate_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LossOutput, PaddedBatch, PairedBatch, TrainStats
    from areal.dataset.loading import ShuffledRows
    from areal.trainer.assembly import Scorer
    from areal.trainer.config import DPOConfig
    from areal.trainer.session import RunSession


class DPOLearner:
    """Raises the probability of preferred answers over that of the others. The part of a run on every rank."""

    def __init__(self, config: DPOConfig, tokenizer: Any, total_steps: int) -> None:
        self.config = config
        self.settings = config.preference
        self.engine = build_engine(config, tokenizer, settings=config.actor, total_steps=total_steps)
        self.states = EngineStates({"actor": self.engine})

    def learn(self, batch: PairedBatch) -> TrainStats:
        """One optimizer step."""
        num_pairs = len(batch.lengths) // 2

        def loss_fn(logp: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return preference_loss(logp, batch=micro, settings=self.settings, num_pairs=num_pairs)

        return self.engine.train_batch(batch, loss_fn)

    def score(self, batch: PairedBatch) -> Tensor:
        """Log-probabilities of the answers' tokens."""
        return _score(self.engine, batch)

    def evaluate(self, batch: PairedBatch, *, num_pairs: int) -> dict[str, Tensor]:
        """Terms of loss and metrics. num_pairs: that the means are over; `batch` may be a part of them."""
        logp = self.score(batch)
        output = preference_loss(logp, batch=batch, settings=self.settings, num_pairs=num_pairs)
        return {"loss": output.loss, **output.metrics}

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        export_model(self.engine, self.config, folder)


class DPOTrainer:
    """Feeds pairs, and what a frozen reference thinks of them, to a learner.

    with open_session(config) as session:
        summary = DPOTrainer(config, session).train()
    """

    def __init__(self, config: DPOConfig, session: RunSession, group: RankGroup | None = None) -> None:
        """group: the ranks that the model is split over; None for this process alone."""
        self.config = config
        self.session = session
        self.group = group or RankGroup()
        self.inputs = row_loop.load_run_inputs(config)
        self.learner = row_loop.create_learner(self.group, DPOLearner, config, self.inputs)
        self.engine = self.learner.local.engine
        self._references: dict[str, ReferenceScores] = {}
        if self.learner.local.settings.uses_reference:
            datasets = {"train_dataset": self.inputs.rows, "valid_dataset": self.inputs.valid}
            self._references = {
                name: ReferenceScores(rows, name=name) for name, rows in datasets.items() if rows is not None
            }
        row_loop.restore(session, self.inputs, self.learner)
        if session.resumed is not None and self._references:
            state = session.resumed.load("reference")
            for name in self._references.keys() & state.keys():
                self._references[name].load_state_dict(state[name])

    def train(self) -> dict[str, Any]:
        """See `row_loop.train`."""
        return row_loop.train(self.config, self.session, self.inputs, self)

    def prepare(self) -> None:
        """Have the reference score every row that is still to be visited and was not yet."""
        size, steps = self.config.batch_size, self.inputs.total_steps
        visits = {"train_dataset": range(self.session.first_step * size, steps * size)}
        if self.inputs.valid is not None:
            visits["valid_dataset"] = range(min(len(self.inputs.valid), self.config.eval_rows))
        missing = {name: scores.missing(visits[name]) for name, scores in self._references.items()}
        if not any(missing.values()):
            return
        # The trained model is its own reference while it is untouched; later, or for another one, it is loaded for now.
        reference = None
        if self.engine.num_steps or self.config.reference_path:
            reference = self.group.create(build_scorer, self.config, self.inputs.tokenizer, self.config.reference_path)

        def score(batch: PairedBatch) -> Tensor:
            if reference is None:
                return self.learner.run(DPOLearner.score, batch)
            return reference.run(_score, batch)

        for name, scores in self._references.items():
            scores.compute(missing[name], score, batch_size=size, stop=lambda: self.session.stop.requested)
        if reference is not None:
            reference.drop()

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """See `row_loop.TrainingTask`."""
        batch = self._batch("train_dataset", self.inputs.rows, ordinals)
        return self.learner.run(DPOLearner.learn, batch), float(batch.lengths.sum())

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Loss and metrics of the validation pairs, a step's worth at a time."""
        assert self.inputs.valid is not None, "only asked with validation rows"
        parts = []
        for start in range(0, count, self.config.batch_size):
            ordinals = range(start, min(start + self.config.batch_size, count))
            batch = self._batch("valid_dataset", self.inputs.valid, ordinals)
            parts.append(self.learner.run(DPOLearner.evaluate, batch, num_pairs=count))
        return {f"{names.EVAL_PREFIX}{key}": value for key, value in combine(parts).items()}

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


def _score(scorer: Scorer, batch: PairedBatch) -> Tensor:
    return scorer.forward_logp(batch, only_masked=True)
