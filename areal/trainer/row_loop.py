"""Train on the rows of a dataset as they are: the loop of SFT, preference and reward-model runs.

A `TrainingTask` says what one step does and what an evaluation measures; rows, steps, metrics, evaluation, checkpoints
and the summary are the same for all tasks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from areal.infra.metrics import names
from areal.trainer.assembly import Learner, build_seeded, load_rows, load_states, steps_in_run, to_save, tokenizer_of
from areal.utils.seeding import seed_everything, set_rng_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from areal.api import TrainStats
    from areal.dataset.loading import ShuffledRows
    from areal.trainer.config import RowsConfig
    from areal.trainer.rank_group import Distributed, RankGroup
    from areal.trainer.session import RunSession, States

_Config = TypeVar("_Config", bound="RowsConfig")
_Learner = TypeVar("_Learner", bound=Learner)


class TrainingTask(Protocol):
    """How one kind of run learns from rows."""

    @property
    def learner(self) -> Distributed[Learner]:
        """What learns."""
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
        """Return what must be saved beside the engine and the random generators."""
        ...

    def export(self, folder: Path) -> None:
        """Write the trained model."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What a run starts from."""

    tokenizer: Any
    rows: ShuffledRows
    valid: ShuffledRows | None
    total_steps: int


def load_run_inputs(config: RowsConfig) -> RunInputs:
    """Seed the process and read the rows. First of all, so that bad rows are reported before a model is loaded."""
    seed_everything(config.seed)
    tokenizer = tokenizer_of(config.model)
    kind, seed = config.dataset_kind, config.seed
    rows = load_rows(config.train_dataset, tokenizer, kind=kind, seed=seed)
    valid = None
    if config.valid_dataset is not None:
        valid = load_rows(replace(config.valid_dataset, shuffle=False), tokenizer, kind=kind, seed=seed)
    steps = steps_in_run(config, num_rows=len(rows), batch_size=config.batch_size)
    return RunInputs(tokenizer=tokenizer, rows=rows, valid=valid, total_steps=steps)


def create_learner(
    group: RankGroup, build: Callable[[_Config, Any, int], _Learner], config: _Config, inputs: RunInputs
) -> Distributed[_Learner]:
    """Build the learner on every rank."""
    return group.create(build_seeded, build, config, inputs.tokenizer, inputs.total_steps)


def restore(session: RunSession, inputs: RunInputs, learner: Distributed[Learner]) -> None:
    """Bring learner and random generators to where the run's newest checkpoint has them, if there is one.

    Raises ConfigError when that checkpoint was trained on other rows.
    """
    session.check_rows(inputs.rows.fingerprint())
    if session.resumed is not None:
        learner.run(load_states, session.resumed.path)
        set_rng_state(session.resumed.load("rng"))


def train(config: RowsConfig, session: RunSession, inputs: RunInputs, task: TrainingTask) -> dict[str, Any]:
    """Run to the last step or a stop request; returns the summary that `areal train --json` prints."""
    total, every = inputs.total_steps, config.eval_every_steps
    # At most this many, and none without validation rows.
    valid_rows = 0 if inputs.valid is None else min(len(inputs.valid), config.eval_rows)

    def evaluate(step: int) -> dict[str, float]:
        """Empty without validation rows, and when it failed."""
        found = None if inputs.valid is None else session.evaluated(step, lambda: task.evaluate(valid_rows))
        if found is None:
            return {}
        metrics = {**found, "eval/rows": float(valid_rows)}
        session.metrics.log(step, metrics)
        return metrics

    def states() -> States:
        return to_save(task.learner, task.states())

    def export(folder: Path) -> None:
        task.export(folder)
        inputs.tokenizer.save_pretrained(folder)

    task.prepare()
    first = session.first_step
    before = evaluate(first) if first == 0 and not session.stop.requested else {}
    for step in session.steps(total, states):
        started = time.perf_counter()
        stats, tokens = task.learn(range(step * config.batch_size, (step + 1) * config.batch_size))
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
        session.metrics.log(step + 1, metrics)
        if every and (step + 1) % every == 0 and step + 1 < total:
            metrics |= evaluate(step + 1)
        session.finish_step(metrics)
    after = evaluate(session.finished_steps) if session.finished_steps >= total else {}
    summary = session.summary(total_steps=total, export=export)
    return summary | {
        "loss": session.last_metrics.get(names.LOSS),
        "eval_before": before,
        "eval_after": after,
    }
