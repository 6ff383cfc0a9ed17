"""Evaluate during a run: all sets, on the engine that rolls out, between two training steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal.infra.rollout.groups import added_uses
from areal.infra.rollout.loop_thread import never
from areal.trainer.evaluation.samples import EvalSample, SetResult
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import PromptGroup
    from areal.infra.rollout.executor import RolloutExecutor
    from areal.infra.rollout.loop_thread import ShouldStop
    from areal.trainer.evaluation.sets import EvaluationSet, EvaluationSets

_logger = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results of all sets after a number of training steps."""

    step: int
    results: Mapping[str, SetResult]
    """By the names of the sets."""

    def metrics(self) -> dict[str, float]:
        """Names as they stand in metrics.jsonl."""
        return {name: value for result in self.results.values() for name, value in result.metrics().items()}


class Evaluator:
    """Samples every set anew for each evaluation, with the same seeds: only the weights differ between two of them."""

    def __init__(self, sets: EvaluationSets, executor: RolloutExecutor, *, seed: int) -> None:
        self.sets = sets
        self._executor = executor
        self._seed = seed

    def run(self, step: int, should_stop: ShouldStop = never) -> Evaluation | None:
        """Evaluate now; None without sets. Raises RolloutStoppedError soon after `should_stop` says so."""
        if not self.sets.sets:
            return None
        results = {}
        for chosen in self.sets:
            groups = self._executor.evaluate(
                chosen.rows,
                workflow=chosen.workflow,
                group_size=chosen.config.samples,
                stream=chosen.stream,
                should_stop=should_stop,
            )
            result = SetResult(
                name=chosen.name,
                k=chosen.config.samples,
                pass_reward=chosen.config.pass_reward,
                rows=tuple(self._samples(chosen, group) for group in groups),
                reward_uses=added_uses(group.reward_uses for group in groups),
            )
            _report(step, result)
            results[chosen.name] = result
        return Evaluation(step=step, results=results)

    def _samples(self, chosen: EvaluationSet, group: PromptGroup) -> tuple[EvalSample, ...]:
        # An episode that branched has several trajectories; the first one stands for it.
        first = {item.sample_index: item for item in reversed(group.trajectories)}
        return tuple(
            EvalSample.scored(first[index], stream=chosen.stream, seed=self._seed, answer=chosen.answer)
            if index in first
            else EvalSample.lost(group.ordinal, index, group.faults, stream=chosen.stream, seed=self._seed)
            for index in range(chosen.config.samples)
        )


def _report(step: int, result: SetResult) -> None:
    score = result.metrics().get(f"eval/{result.name}/avg@{result.k}")
    shown = "nothing could be scored" if score is None else f"avg@{result.k} {score:.3f}"
    _logger.info("evaluation of %s at step %d: %s over %d rows", result.name, step, shown, len(result.rows))
    if result.lost:
        message = "evaluation of %s: %d samples could not be scored; the first: %s"
        _logger.warning(message, result.name, result.lost, result.first_fault)
