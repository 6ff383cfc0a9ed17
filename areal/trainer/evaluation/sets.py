"""Build the named sets of a configuration (rows, reward, workflow and sampling of each), and evaluate them during a
run: all of them, on the engine that rolls out, between two training steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.infra.rollout.groups import added_uses
from areal.infra.rollout.loop_thread import never
from areal.trainer.assembly import load_rows
from areal.trainer.configuration.validation import length_limit
from areal.trainer.evaluation.samples import EvalSample, SetResult
from areal.trainer.image_rows import prompt_images_of
from areal.trainer.sources import start_reward
from areal.utils.logging import getLogger
from areal.workflow.assembly import create_workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from areal.api import GenerationConfig, PromptGroup, RolloutWorkflow
    from areal.dataset.loading import ShuffledRows
    from areal.infra.rollout.executor import RolloutExecutor
    from areal.infra.rollout.loop_thread import ShouldStop
    from areal.reward.components import RewardChoice
    from areal.reward.scoring import RewardSet
    from areal.trainer.config import PPOConfig
    from areal.trainer.evaluation_config import EvalSetConfig

_logger = getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """One set, ready to be sampled."""

    name: str
    config: EvalSetConfig
    rows: tuple[Mapping[str, Any], ...]
    fingerprint: str
    """Of the rows."""
    gconfig: GenerationConfig
    workflow: RolloutWorkflow

    @property
    def votes(self) -> bool:
        """Whether samples are compared with each other: of one or two, the vote is their mean."""
        return self.config.samples > 2

    @cached_property
    def answer(self) -> Callable[[str], str | None]:
        """Return what finds the answer that a sample votes with. Raises RegistryError for an unknown rule."""
        from areal.trainer.evaluation.answers import answer_rule

        return answer_rule(self.config.answer)

    @property
    def stream(self) -> str:
        """Family of seeds: sets are independent of each other and of training."""
        return f"eval/{self.name}"


class EvaluationSets:
    """All sets of a configuration, and the processes of their own rewards. It owns processes: close it.

    The rewards run from the start, so that one that cannot be imported is reported before anything is sampled.
    """

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: Any,
        *,
        reward: RewardSet | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        """reward: that of the run, for sets without their own; None starts one when a set needs it. only: names of the
        sets to build; None builds all.

        Raises ConfigError for a set that has no reward, and what datasets, rewards and workflows raise.
        """
        self._config, self._tokenizer, self._shared = config, tokenizer, reward
        self._owned: list[RewardSet] = []
        try:
            self.sets = tuple(
                self._build(name, settings)
                for name, settings in config.eval_sets.items()
                if only is None or name in only
            )
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[EvaluationSet]:
        """In the order of the configuration."""
        return iter(self.sets)

    def close(self) -> None:
        """Stop the rewards that were started here. Idempotent."""
        for reward in self._owned:
            reward.close()

    def _build(self, name: str, settings: EvalSetConfig) -> EvaluationSet:
        config, tokenizer = self._config, self._tokenizer
        gconfig = sampling_of(settings, config)
        source, count = rows_of(settings, config, tokenizer)
        own = bool(settings.workflow)
        built = EvaluationSet(
            name=name,
            config=settings,
            rows=tuple(source.row(index) for index in range(count)),
            fingerprint=source.fingerprint(),
            gconfig=gconfig,
            workflow=create_workflow(
                settings.workflow or config.workflow,
                reward=self._reward(name, settings),
                gconfig=gconfig,
                tokenizer=tokenizer,
                options=settings.workflow_options if own else config.workflow_options,
            ),
        )
        if built.votes:
            _ = built.answer  # now, so that a rule that cannot be imported is reported before anything is sampled
        return built

    def _reward(self, name: str, settings: EvalSetConfig) -> RewardSet:
        if settings.reward:
            return self._start(settings.reward)
        if self._shared is None:
            if not self._config.reward:
                raise ConfigError(
                    f"eval_sets.{name} has no reward, and the configuration has none to take in its place",
                    where=f"eval_sets.{name}.reward",
                    fix=f"set eval_sets.{name}.reward to a registry name or an importable path",
                )
            self._shared = self._start(self._config.reward)
        return self._shared

    def _start(self, reward: RewardChoice) -> RewardSet:
        started = start_reward(reward, self._config)
        self._owned.append(started)
        return started


def rows_of(settings: EvalSetConfig, config: PPOConfig, tokenizer: Any) -> tuple[ShuffledRows, int]:
    """Return the rows of a set in file order, and how many of them are evaluated."""
    unshuffled, limit = replace(settings.dataset, shuffle=False), length_limit(config, sampling_of(settings, config))
    options = settings.workflow_options if settings.workflow else config.workflow_options
    place = prompt_images_of(options, tokenizer)
    source = load_rows(unshuffled, tokenizer, kind="rl", seed=config.seed, limit=limit, place_images=place)
    return source, len(source) if settings.rows is None else min(settings.rows, len(source))


def sampling_of(settings: EvalSetConfig, config: PPOConfig) -> GenerationConfig:
    """Return how a set is sampled: its own gconfig, or the run's, greedy for one sample per row.

    Raises ConfigError when several samples of a row would be the same.
    """
    if settings.gconfig is not None:
        return settings.gconfig
    if settings.samples == 1:
        return replace(config.gconfig, greedy=True)
    if config.gconfig.greedy:
        raise ConfigError(
            f"samples is {settings.samples} and the run's gconfig is greedy: all samples of a row would be the same",
            fix="give the set a gconfig of its own, or set samples to 1",
        )
    return config.gconfig


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
            score = result.metrics().get(f"eval/{result.name}/avg@{result.k}")
            shown = "nothing could be scored" if score is None else f"avg@{result.k} {score:.3f}"
            _logger.info("evaluation of %s at step %d: %s over %d rows", result.name, step, shown, len(result.rows))
            if result.lost:
                message = "evaluation of %s: %d samples could not be scored; the first: %s"
                _logger.warning(message, result.name, result.lost, result.first_fault)
            results[chosen.name] = result
        return Evaluation(step=step, results=results)

    def _samples(self, chosen: EvaluationSet, group: PromptGroup) -> tuple[EvalSample, ...]:
        # An episode that branched has several trajectories; the first one stands for it.
        first = {item.sample_index: item for item in reversed(group.trajectories)}
        answer = chosen.answer if chosen.votes else None
        return tuple(
            EvalSample.scored(first[index], stream=chosen.stream, seed=self._seed, answer=answer)
            if index in first
            else EvalSample.lost(group.ordinal, index, group.faults, stream=chosen.stream, seed=self._seed)
            for index in range(chosen.config.samples)
        )
