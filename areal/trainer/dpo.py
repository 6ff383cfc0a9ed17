"""Learning a policy from preference pairs: DPO and its relatives (`areal.algorithm.preference_spec`).

The reference model scores every pair that the run will visit before the first step; then only its numbers are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.algorithm import metrics as metric_functions
from areal.algorithm.preference import preference_loss
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.reference import FrozenModel
from areal.infra.metrics import names
from areal.trainer import row_loop
from areal.trainer.assembly import export_model, load_model, load_reference
from areal.trainer.reference_scores import ReferenceScores
from areal.trainer.rows import collate_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LossOutput, PaddedBatch, PairedBatch, TrainStats
    from areal.dataset.prompt_source import ShuffledRows
    from areal.trainer.pair_config import DPOConfig
    from areal.trainer.reference_scores import Scorer
    from areal.trainer.session import RunSession


class DPOTrainer:
    """Raises the probability of preferred answers over that of the others, measured from a frozen reference.

    with open_session(config) as session:
        summary = DPOTrainer(config, session).train()
    """

    def __init__(self, config: DPOConfig, session: RunSession) -> None:
        self.config = config
        self.session = session
        self.spec = config.preference.spec()
        self.material = row_loop.gather(config)
        self.engine = TrainingEngine(
            load_model(config, self.material.tokenizer), config=config.actor, total_steps=self.material.total_steps
        )
        self._references: dict[str, ReferenceScores] = {}
        if self.spec.uses_reference:
            datasets = {"train_dataset": self.material.rows, "valid_dataset": self.material.valid}
            self._references = {
                name: ReferenceScores(rows, name=name) for name, rows in datasets.items() if rows is not None
            }
        row_loop.restore(session, self.material, self.engine)
        if session.resumed is not None and self._references:
            state = session.resumed.load("reference")
            for name in self._references.keys() & state.keys():
                self._references[name].load_state_dict(state[name])

    def train(self) -> dict[str, Any]:
        """See `row_loop.train`."""
        return row_loop.train(self.config, self.session, self.material, self)

    def prepare(self) -> None:
        """Have the reference score every row that is still to be visited and was not yet."""
        size, steps = self.config.batch_size, self.material.total_steps
        visits = {"train_dataset": range(self.session.first_step * size, steps * size)}
        if self.material.valid is not None:
            visits["valid_dataset"] = range(min(len(self.material.valid), self.config.eval_rows))
        missing = {name: scores.missing(visits[name]) for name, scores in self._references.items()}
        if any(missing.values()):
            scorer = self._reference()
            for name, scores in self._references.items():
                scores.compute(missing[name], scorer, batch_size=size, stop=lambda: self.session.stop.requested)

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """See `row_loop.Method`."""
        batch = self._batch("train_dataset", self.material.rows, ordinals)

        def loss_fn(logp: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return preference_loss(logp, batch=micro, spec=self.spec, num_pairs=len(ordinals))

        return self.engine.train_batch(batch, loss_fn), float(batch.lengths.sum())

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Loss and metrics of the validation pairs, a step's worth at a time."""
        assert self.material.valid is not None, "only asked with validation rows"
        parts = []
        for start in range(0, count, self.config.batch_size):
            ordinals = range(start, min(start + self.config.batch_size, count))
            batch = self._batch("valid_dataset", self.material.valid, ordinals)
            logp = self.engine.forward_logp(batch, only_masked=True)
            output = preference_loss(logp, batch=batch, spec=self.spec, num_pairs=count)
            parts.append({"loss": output.loss, **output.metrics})
        return {f"{names.EVAL_PREFIX}{key}": value for key, value in metric_functions.combine(parts).items()}

    def states(self) -> Mapping[str, Any]:
        """The reference's numbers."""
        return {"reference": {name: scores.state_dict() for name, scores in self._references.items()}}

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        export_model(self.engine, self.config, folder)

    def _batch(self, name: str, rows: ShuffledRows, ordinals: range) -> PairedBatch:
        if name in self._references:
            return self._references[name].batch(ordinals)
        return collate_pairs([rows.row(ordinal) for ordinal in ordinals], numbers=ordinals)

    def _reference(self) -> Scorer:
        """The trained model itself while it is untouched; otherwise what it was, or another one, loaded for now."""
        if self.engine.num_steps == 0 and not self.config.reference_path:
            return self.engine
        model = load_reference(self.config, self.material.tokenizer, path=self.config.reference_path)
        return FrozenModel(model, config=self.config.actor)
