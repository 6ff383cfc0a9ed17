"""Build the sources of a run from its configuration: rows, rewards and workflows of each, and the order of all.

`train_dataset` is the one source of a run that has no `sources`; what a source does not say is the run's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.dataset.loading import ShuffledRows, fingerprint_sources, load_dataset
from areal.infra.rollout.episode import derive_seed
from areal.infra.rollout.schedule import PromptSchedule, RolloutSource
from areal.reward.components import resolve_components
from areal.reward.scoring import RewardSet
from areal.trainer.configuration.validation import length_limit
from areal.trainer.image_rows import prompt_images_of
from areal.workflow.assembly import create_workflow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import Trajectory
    from areal.reward.components import RewardChoice
    from areal.trainer.config import PPOConfig, SourceConfig


class TrainingSources:
    """All sources of a run. It owns the processes of their rewards: close it."""

    def __init__(self, config: PPOConfig, tokenizer: Any) -> None:
        """Load the rows; `start` the rewards later. Raises what datasets raise."""
        self._config, self._tokenizer = config, tokenizer
        self._chosen = config.all_sources
        self.rows: Mapping[str, ShuffledRows] = {
            name: self._load(name, source) for name, source in self._chosen.items()
        }
        self._rewards: dict[str, RewardSet] = {}
        self.shared: RewardSet | None = None
        """The reward of the run, once started; None where every source has its own, or the run only distils."""

    @property
    def num_rows(self) -> int:
        """Rows of all sources."""
        return sum(map(len, self.rows.values()))

    def fingerprint(self) -> str:
        """Return a digest of the rows of all sources."""
        return fingerprint_sources(self.rows)

    def start(self) -> None:
        """Start the rewards; each is imported when this returns."""
        shared: RewardSet | None = None
        try:
            for name, source in self._chosen.items():
                if source.reward:
                    self._rewards[name] = start_reward(source.reward, self._config)
                else:
                    shared = shared or start_reward(self._config.reward, self._config)
                    self._rewards[name] = shared
            self.shared = shared if self._config.learns_from_reward else None
        except BaseException:
            self.close()
            raise

    def schedule(self) -> PromptSchedule:
        """Return the order of the run, with workflows that call the started rewards."""
        config = self._config
        sources = [
            RolloutSource(
                name=name,
                rows=self.rows[name],
                weight=source.weight,
                pass_reward=source.pass_reward,
                workflow=create_workflow(
                    source.workflow or config.workflow,
                    reward=self._rewards[name],
                    gconfig=source.gconfig or config.gconfig,
                    tokenizer=self._tokenizer,
                    options=source.workflow_options if source.workflow else config.workflow_options,
                ),
            )
            for name, source in self._chosen.items()
        ]
        return PromptSchedule(sources, seed=config.seed, curriculum=config.curriculum)

    def normalised(self, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return the trajectories with the scores to train on, each by the components of its source's reward; the same
        ones where nothing is normalised (`areal.reward.combining`).
        """
        parts = (part for reward in self._rewards.values() for part in reward.components)
        if all(part.normalize == "none" for part in parts):
            return trajectories
        from areal.reward.combining import with_normalised_rewards

        found = list(trajectories)
        for name, reward in self._rewards.items():
            indices = [index for index, item in enumerate(trajectories) if item.source == name]
            own = [trajectories[index] for index in indices]
            scored = with_normalised_rewards(reward.components, own)
            for index, item in zip(indices, scored, strict=True):
                found[index] = item
        return found

    def close(self) -> None:
        """Stop the rewards. Idempotent."""
        for reward in self._rewards.values():
            reward.close()

    def _load(self, name: str, source: SourceConfig) -> ShuffledRows:
        config = self._config
        limit = length_limit(config, source.gconfig)
        options = source.workflow_options if source.workflow else config.workflow_options
        place = prompt_images_of(options, self._tokenizer)
        rows = load_dataset(source.dataset, self._tokenizer, kind="rl", limit=limit, place_images=place)
        # Sources of one length would else be shuffled alike.
        seed = derive_seed("source", config.seed, name) if name else config.seed
        return ShuffledRows(rows, seed=seed, shuffle=source.dataset.shuffle, max_rows=source.max_rows)


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
