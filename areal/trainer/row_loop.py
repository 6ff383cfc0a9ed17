"""The loop of every run that learns from the rows of a dataset as they are: SFT, preferences, reward models.

What one step does, and what an evaluation measures, is the business of a `Method`; rows, steps, metrics, evaluation,
checkpoints and the summary are the same for all and live here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from areal.infra.metrics import names
from areal.trainer.assembly import load_rows, steps_in_run, tokenizer_of
from areal.trainer.engines import seeded
from areal.trainer.states import EngineStates, to_save
from areal.utils.seeding import seed_everything, set_rng_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from areal.api import TrainStats
    from areal.dataset.prompt_source import ShuffledRows
    from areal.trainer.config import RowsConfig
    from areal.trainer.crew import Crew
    from areal.trainer.session import RunSession, States


class Learner(Protocol):
    """What a crew's "learner" has in all of these runs, beside what its method asks of it."""

    @property
    def states(self) -> EngineStates:
        """Of what is trained."""
        ...


class Method(Protocol):
    """How one kind of run learns from rows."""

    @property
    def crew(self) -> Crew:
        """The processes that learn."""
        ...

    @property
    def learner(self) -> Learner:
        """This process's part of what learns."""
        ...

    def prepare(self) -> None:
        """Whatever must be known before the first step of this process; returns early when a stop is requested."""
        ...

    def learn(self, ordinals: range) -> tuple[TrainStats, float]:
        """One optimizer step on the training rows at `ordinals`; also how many tokens they have."""
        ...

    def evaluate(self, count: int) -> Mapping[str, float]:
        """Metrics, named "eval/...", of the first `count` validation rows."""
        ...

    def states(self) -> Mapping[str, Any]:
        """What must be saved beside the engine and the random generators."""
        ...

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        ...


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a run starts from."""

    tokenizer: Any
    rows: ShuffledRows
    valid: ShuffledRows | None
    total_steps: int


def gather(config: RowsConfig) -> Material:
    """Seed the process and read the rows. First of all, so that bad rows are reported before a model is loaded."""
    seed_everything(config.seed)
    tokenizer = tokenizer_of(config.model)
    kind, seed = config.dataset_kind, config.seed
    rows = load_rows(config.train_dataset, tokenizer, kind=kind, seed=seed)
    valid = None
    if config.valid_dataset is not None:
        valid = load_rows(replace(config.valid_dataset, shuffle=False), tokenizer, kind=kind, seed=seed)
    steps = steps_in_run(config, num_rows=len(rows), batch_size=config.batch_size)
    return Material(tokenizer=tokenizer, rows=rows, valid=valid, total_steps=steps)


def create_learner(crew: Crew, factory: Callable[..., Any], config: RowsConfig, material: Material) -> Any:
    """The crew's "learner", on every rank."""
    return crew.create("learner", seeded, config.seed, factory, config, material.tokenizer, material.total_steps)


def restore(session: RunSession, material: Material, crew: Crew) -> None:
    """Bring the crew's "learner" and random generators to where the run's newest checkpoint has them, if there is one.

    Raises ConfigError when that checkpoint was trained on other rows.
    """
    session.check_rows(material.rows.fingerprint())
    if session.resumed is not None:
        crew.call("learner", "states.load", session.resumed.path)
        set_rng_state(session.resumed.load("rng"))


def train(config: RowsConfig, session: RunSession, material: Material, method: Method) -> dict[str, Any]:
    """Run to the last step or a stop request; returns the summary that `areal train --json` prints."""
    return _RowLoop(config, session, material, method).run()


class _RowLoop:
    def __init__(self, config: RowsConfig, session: RunSession, material: Material, method: Method) -> None:
        self._config = config
        self._session = session
        self._material = material
        self._method = method

    def run(self) -> dict[str, Any]:
        session, total = self._session, self._material.total_steps
        self._method.prepare()
        first = session.first_step
        before = self._evaluate(first) if first == 0 and not session.stop.requested else {}
        steps, last = session.run_steps(total, self._step, self._states)
        after = self._evaluate(steps) if steps >= total else {}
        summary = session.summary(steps=steps, total_steps=total, export=self._export)
        return summary | {"loss": last.get(names.LOSS), "eval_before": before, "eval_after": after}

    def _step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        first = step * self._config.batch_size
        stats, tokens = self._method.learn(range(first, first + self._config.batch_size))
        seconds = time.perf_counter() - started
        metrics = {
            names.LOSS: stats.loss,
            names.GRAD_NORM: stats.grad_norm,
            names.LEARNING_RATE: stats.learning_rate,
            "train/skipped_steps": float(not stats.stepped),
            "tokens/total": tokens,
            names.TOKENS_PER_SECOND: tokens / max(seconds, 1e-9),
            names.TIME_STEP: seconds,
            **{f"train/{key}": value for key, value in stats.metrics.items()},
        }
        self._session.metrics.log(step + 1, metrics)
        every = self._config.eval_every_steps
        if every and (step + 1) % every == 0 and step + 1 < self._material.total_steps:
            metrics = metrics | self._evaluate(step + 1)
        return metrics

    def _evaluate(self, step: int) -> dict[str, float]:
        """Empty without validation rows, and when it failed."""
        if self._material.valid is None:
            return {}
        count = min(len(self._material.valid), self._config.eval_rows)
        found = self._session.evaluated(step, lambda: self._method.evaluate(count))
        if found is None:
            return {}
        metrics = {**found, "eval/rows": float(count)}
        self._session.metrics.log(step, metrics)
        return metrics

    def _export(self, folder: Path) -> None:
        self._method.export(folder)
        self._material.tokenizer.save_pretrained(folder)

    def _states(self) -> States:
        return to_save(self._method.crew, self._method.learner.states, self._method.states())
