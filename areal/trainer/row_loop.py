"""Train on the rows of a dataset as they are: the loop of SFT, preference and reward-model runs.

The trainer of each kind says what one step does and what an evaluation measures; rows, steps, metrics, evaluation,
checkpoints and the summary are the same for all kinds.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from areal.algorithm.tokens import combine
from areal.infra.metrics import names
from areal.trainer.assembly import Learner, build_seeded, load_rows, load_states, steps_in_run, to_save, tokenizer_of
from areal.trainer.config import SFTConfig
from areal.trainer.configuration.validation import read_model_config
from areal.trainer.image_rows import ImageRows, image_rows_of
from areal.trainer.rank_group import RankGroup
from areal.trainer.utilisation import Utilisation
from areal.utils import tracing
from areal.utils.seeding import seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import TrainStats
    from areal.trainer.config import RowsConfig
    from areal.trainer.session import RunSession, States

_Config = TypeVar("_Config", bound="RowsConfig")
_Learner = TypeVar("_Learner", bound=Learner)


class RowTrainer(ABC, Generic[_Config, _Learner]):
    """Feeds the rows of a dataset to a learner, which every rank has.

    with open_session(config) as session:
        summary = SFTTrainer(config, session).train()
    """

    def __init__(
        self,
        config: _Config,
        session: RunSession,
        group: RankGroup | None,
        build: Callable[[_Config, Any, int], _Learner],
    ) -> None:
        """Read the rows, so that bad ones are reported before a model is loaded; build the learner on every rank; bring
        it to where the run's newest checkpoint has it. group: the ranks that the model is split over; None for this
        process alone.
        """
        self.config, self.session, self.group = config, session, group or RankGroup()
        seed_everything(config.seed)
        self.tokenizer = tokenizer_of(config.model)
        kind, seed = config.dataset_kind, config.seed
        session.view.begin("loading rows")
        self.images: ImageRows | None = None
        """Reads the images of rows; None where there are none."""
        if isinstance(config, SFTConfig):
            self.images = image_rows_of(config.model, read_model_config(config.model), config.images)
        place = None if self.images is None else self.images.place
        self.rows = load_rows(config.train_dataset, self.tokenizer, kind=kind, seed=seed, place_images=place)
        self.valid = None
        if config.valid_dataset is not None:
            unshuffled = replace(config.valid_dataset, shuffle=False)
            self.valid = load_rows(unshuffled, self.tokenizer, kind=kind, seed=seed, place_images=place)
        self.check_rows()
        session.check_rows(self.rows.fingerprint())
        self.total_steps = steps_in_run(config, num_rows=len(self.rows), batch_size=config.batch_size)
        session.check_unfinished(self.total_steps)
        session.view.begin("loading the model")
        self.learner = self.group.create(build_seeded, build, config, self.tokenizer, self.total_steps)
        if session.resumed is not None:
            self.learner.run(load_states, session.resumed.path)

    def check_rows(self) -> None:
        """Raise ConfigError for rows that lack what the configuration asks of them."""

    def prepare(self) -> None:
        """Find out what must be known before the first step of this process; return early when a stop is requested."""

    @abstractmethod
    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """Do one optimizer step on the training rows at `ordinals`; return also how many tokens they have."""

    @abstractmethod
    def evaluate(self, count: int) -> Mapping[str, float]:
        """Return metrics, named "eval/...", of the first `count` validation rows."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write the trained model."""

    def states(self) -> Mapping[str, Any]:
        """Return what must be saved beside the engine and the random generators."""
        return {}

    def evaluate_in_parts(self, count: int, evaluate: Callable[[range], dict[str, Tensor]]) -> dict[str, float]:
        """Return metrics of the first `count` rows from their terms, computed for a step's worth at a time."""
        size = self.config.batch_size
        parts = [evaluate(range(start, min(start + size, count))) for start in range(0, count, size)]
        return {f"{names.EVAL_PREFIX}{key}": value for key, value in combine(parts).items()}

    def train(self) -> dict[str, Any]:
        """Run to the last step or a stop request; return the summary that `areal train --json` prints."""
        config, session, total = self.config, self.session, self.total_steps
        # At most this many, and none without validation rows.
        valid_rows = 0 if self.valid is None else min(len(self.valid), config.eval_rows)

        def evaluate(step: int) -> dict[str, float]:
            """Empty without validation rows, and when it failed."""
            with tracing.span("evaluate"):
                found = None if self.valid is None else session.evaluated(step, lambda: self.evaluate(valid_rows))
            if found is None:
                return {}
            metrics = {**found, "eval/rows": float(valid_rows)}
            session.metrics.log(step, metrics)
            return metrics

        def states() -> States:
            return to_save(self.learner, self.states())

        def export(folder: Path) -> None:
            self.export(folder)
            self.tokenizer.save_pretrained(folder)

        utilisation = Utilisation(config, self.learner.local.states.ranks)
        self.prepare()
        first, every = session.first_step, config.eval_every_steps
        before = evaluate(first) if first == 0 and not session.stop.requested else {}
        if before:
            session.measured(before, export)
        num_sequences = config.batch_size * (2 if config.dataset_kind == "preference" else 1)
        for step in session.steps(total, states, export):
            started = time.perf_counter()
            with tracing.span("learn"):
                stats, tokens = self.learn(range(step * config.batch_size, (step + 1) * config.batch_size))
            seconds = time.perf_counter() - started
            metrics = {
                names.LOSS: stats.loss,
                names.GRAD_NORM: stats.grad_norm,
                names.LEARNING_RATE: stats.learning_rate,
                "train/skipped_steps": float(not stats.stepped),
                "tokens/total": tokens,
                names.TOKENS_PER_SECOND: tokens / max(seconds, 1e-9),
                names.TIME_STEP: seconds,
                # As if all sequences of the step were equally long, which counts slightly too few FLOPs.
                **utilisation.metrics([round(tokens / num_sequences)] * num_sequences, seconds),
                **{f"train/{key}": value for key, value in stats.metrics.items()},
            }
            session.metrics.log(step + 1, metrics)
            if every and (step + 1) % every == 0 and step + 1 < total:
                metrics |= evaluate(step + 1)
            session.finish_step(metrics)
        after = evaluate(session.finished_steps) if session.is_finished(total) else {}
        if after:
            session.measured(after, export)
        summary = session.summary(total_steps=total, export=export)
        return summary | {
            "loss": session.last_metrics.get(names.LOSS),
            "eval_before": before,
            "eval_after": after,
        }
