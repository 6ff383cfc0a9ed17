"""Score the current policy on fixed held-out rows, on the same engine, without touching the training ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from areal.infra.metrics import names
from areal.infra.rollout.loop_thread import never
from areal.trainer.assembly import load_rows
from areal.utils.logging import getLogger
from areal.workflow.creation import create_workflow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.infra.rollout.executor import RolloutExecutor
    from areal.infra.rollout.loop_thread import ShouldStop
    from areal.reward.isolation import AsyncRewardWrapper
    from areal.trainer.config import PPOConfig

_logger = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result on the held-out rows."""

    step: int
    reward: float
    """Mean reward over scored rows; NaN when none could be scored."""
    length: float
    """Mean sampled tokens."""
    rows: int
    """Rows that were scored."""
    faults: int
    """Rows that could not be scored; they are left out of the means."""
    rewards: tuple[float | None, ...]
    """Reward of each row in order; None where it could not be scored."""

    def metrics(self) -> dict[str, float]:
        """Names as they stand in metrics.jsonl."""
        counts = {"eval/rows": float(self.rows), "eval/faults": float(self.faults)}
        # Nothing scored is not a score of 0.
        return counts | {names.EVAL_REWARD: self.reward, "eval/length": self.length} if self.rows else counts


class Evaluator:
    """Greedy by default: one sample per row, with the length limits of training."""

    def __init__(
        self, *, config: PPOConfig, executor: RolloutExecutor, tokenizer: Any, reward: AsyncRewardWrapper, seed: int
    ) -> None:
        self._executor = executor
        self.rows: list[Any] = []
        """Held-out rows, in file order; empty without valid_dataset."""
        if config.valid_dataset is None:
            return
        source = load_rows(replace(config.valid_dataset, shuffle=False), tokenizer, kind="rl", seed=seed)
        self.rows = [source.row(index) for index in range(min(len(source), config.eval_rows))]
        self._workflow = create_workflow(
            config.workflow,
            reward=reward,
            gconfig=config.eval_gconfig or replace(config.gconfig, greedy=True),
            tokenizer=tokenizer,
            options=config.workflow_options,
        )

    def run(self, step: int, should_stop: ShouldStop = never) -> Evaluation | None:
        """Evaluate now; None without validation rows. Raises RolloutStoppedError soon after `should_stop` says so."""
        if not self.rows:
            return None
        groups = self._executor.evaluate(self.rows, workflow=self._workflow, should_stop=should_stop)
        firsts = [group.trajectories[0] if group.trajectories else None for group in groups]
        scored = [item for item in firsts if item is not None]
        result = Evaluation(
            step=step,
            reward=_mean([item.reward for item in scored]),
            length=_mean([item.num_sampled for item in scored]),
            rows=len(scored),
            faults=len(self.rows) - len(scored),
            rewards=tuple(None if item is None else item.reward for item in firsts),
        )
        _logger.info("evaluation at step %d: reward %.3f over %d rows", step, result.reward, result.rows)
        if result.faults:
            fault = next(fault for group in groups if not group.trajectories for fault in group.faults)
            _logger.warning("%d rows could not be scored; the first: %s: %s", result.faults, fault.kind, fault.message)
        return result


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
