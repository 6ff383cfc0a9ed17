"""Build the named sets of a configuration: rows, reward, workflow and sampling of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.reward.components import resolve_components
from areal.reward.scoring import RewardSet
from areal.trainer.assembly import load_rows
from areal.trainer.configuration.lengths import length_limit
from areal.trainer.evaluation.answers import answer_rule
from areal.workflow.assembly import create_workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from areal.api import GenerationConfig, RolloutWorkflow
    from areal.dataset.loading import ShuffledRows
    from areal.reward.components import RewardChoice
    from areal.trainer.config import PPOConfig
    from areal.trainer.evaluation_config import EvalSetConfig


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
    answer: Callable[[str], str | None]

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
        return EvaluationSet(
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
            answer=answer_rule(settings.answer),
        )

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


def start_reward(reward: RewardChoice, config: PPOConfig) -> RewardSet:
    """Start the processes of a reward, with the limits of `config.rollout`; it is imported when this returns.

    The reward of a run that only distils has no components: every sample scores 0.
    """
    started = RewardSet(
        () if reward == "" and not config.learns_from_reward else resolve_components(reward),
        timeout_seconds=config.rollout.reward_timeout_seconds,
        max_workers=config.rollout.reward_workers,
        memory_limit_mb=config.rollout.reward_memory_mb or None,
    )
    try:
        started.start()
    except BaseException:
        started.close()
        raise
    return started


def rows_of(settings: EvalSetConfig, config: PPOConfig, tokenizer: Any) -> tuple[ShuffledRows, int]:
    """Return the rows of a set in file order, and how many of them are evaluated."""
    unshuffled, limit = replace(settings.dataset, shuffle=False), length_limit(config, sampling_of(settings, config))
    source = load_rows(unshuffled, tokenizer, kind="rl", seed=config.seed, limit=limit)
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
