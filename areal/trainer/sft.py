"""Supervised fine-tuning: the same engine, checkpoints and metrics as RL, with a data loader in place of rollouts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal.algorithm.aggregate import count
from areal.algorithm.packing import collate
from areal.algorithm.sft import sft_loss
from areal.api import DataError, StopReason, Trajectory
from areal.engine.train.engine import TrainingEngine
from areal.infra.metrics import names
from areal.trainer.assembly import load_model, load_rows, steps_in_run, tokenizer_of
from areal.utils.logging import getLogger
from areal.utils.seeding import rng_state, seed_everything, set_rng_state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from areal.api import LossOutput, PaddedBatch
    from areal.dataset.prompt_source import ShuffledRows
    from areal.trainer.config import SFTConfig
    from areal.trainer.session import RunSession

_logger = getLogger(__name__)


class SFTTrainer:
    """Minimises the mean negative log-likelihood of the tokens with loss_mask 1.

    with open_session(config) as session:
        summary = SFTTrainer(config, session).train()
    """

    def __init__(self, config: SFTConfig, session: RunSession) -> None:
        seed_everything(config.seed)
        self.config = config
        self.session = session
        self.tokenizer = tokenizer_of(config.model)
        self.rows = load_rows(config.train_dataset, self.tokenizer, kind="sft", seed=config.seed)
        self.valid = (
            load_rows(replace(config.valid_dataset, shuffle=False), self.tokenizer, kind="sft", seed=config.seed)
            if config.valid_dataset is not None
            else None
        )
        self.total_steps = steps_in_run(config, num_rows=len(self.rows), batch_size=config.batch_size)
        self.engine = TrainingEngine(
            load_model(config, self.tokenizer), config=config.actor, total_steps=self.total_steps
        )
        if session.resumed is not None:
            self.engine.load_state_dict(session.resumed.load("actor"))
            set_rng_state(session.resumed.load("rng"))

    def train(self) -> dict[str, Any]:
        """Run to the last step or a stop request; returns the summary that `areal train --json` prints."""
        first = self.session.first_step
        before = self._evaluate(first) if first == 0 else {}
        steps, last = self.session.run_steps(self.total_steps, self._step, self._states)
        after = self._evaluate(steps) if steps >= self.total_steps else {}
        summary = self.session.summary(steps=steps, total_steps=self.total_steps, export=self._export)
        return summary | {"loss": last.get(names.LOSS), "eval_before": before, "eval_after": after}

    def _step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        first = step * self.config.batch_size
        batch = collate_rows(self.rows, range(first, first + self.config.batch_size))
        denominators = count(batch.loss_mask)

        def loss_fn(logp: Tensor, _: Tensor | None, micro: PaddedBatch) -> LossOutput:
            return sft_loss(logp, mask=micro.loss_mask, denominators=denominators)

        stats = self.engine.train_batch(batch, loss_fn, smoothing=self.config.label_smoothing)
        seconds = time.perf_counter() - started
        tokens = float(batch.lengths.sum())
        metrics = {
            names.LOSS: stats.loss,
            names.GRAD_NORM: stats.grad_norm,
            names.LEARNING_RATE: stats.learning_rate,
            "train/skipped_steps": float(not stats.stepped),
            "tokens/total": tokens,
            names.TOKENS_PER_SECOND: tokens / max(seconds, 1e-9),
            names.TIME_STEP: seconds,
            # With label smoothing the engine's log-probabilities are smoothed, and so would this "likelihood" be.
            **({} if self.config.label_smoothing else {f"train/{key}": value for key, value in stats.metrics.items()}),
        }
        self.session.metrics.log(step + 1, metrics)
        every = self.config.eval_every_steps
        if every and (step + 1) % every == 0 and step + 1 < self.total_steps:
            metrics = metrics | self._evaluate(step + 1)
        return metrics

    def _evaluate(self, step: int) -> dict[str, float]:
        """Mean negative log-likelihood per target token of the validation rows; empty without them."""
        if self.valid is None:
            return {}
        count = min(len(self.valid), self.config.eval_rows)
        batch = collate_rows(self.valid, range(count))
        logp = self.engine.forward_logp(batch)
        loss = -float((logp * batch.loss_mask).sum() / batch.loss_mask.sum().clamp(min=1))
        metrics = {names.EVAL_LOSS: loss, "eval/rows": float(count)}
        self.session.metrics.log(step, metrics)
        return metrics

    def _export(self, folder: Path) -> None:
        self.engine.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _states(self) -> Mapping[str, Any]:
        return {"actor": self.engine.state_dict(), "rng": rng_state()}


def collate_rows(rows: ShuffledRows, ordinals: range) -> PaddedBatch:
    """Batch of supervised rows; columns that only RL has are filled with neutral values."""
    return collate([_as_trajectory(rows.row(ordinal), ordinal) for ordinal in ordinals])


def _as_trajectory(row: Mapping[str, Any], ordinal: int) -> Trajectory:
    # Nothing predicts the first token, so it cannot be learnt.
    tokens, mask = list(row["input_ids"]), [0, *(int(value) for value in row["loss_mask"][1:])]
    if not any(mask):
        raise DataError(f"row {ordinal}: no token to learn (loss_mask is 0 everywhere after the first token)")
    versions = [0 if value else -1 for value in mask]
    return Trajectory(
        tokens=tokens,
        loss_mask=mask,
        logprobs=[0.0] * len(tokens),
        versions=versions,
        turn_ids=versions,
        reward=0.0,
        stop_reason=StopReason.STOP,
        group_id=ordinal,
    )
