"""Configures several sources of training rows: a mixture by weight, each with its own reward, workflow and sampling."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from areal.api import Config, ConfigError, GenerationConfig, number
from areal.dataset.config import DatasetConfig
from areal.reward.components import RewardChoice, resolve_components

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class SourceConfig(Config):
    """One of several sources of training rows."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Rows of the source."""
    weight: float = number(1.0, above=0)
    """Share of the prompts, relative to the weights of the other sources."""
    max_rows: int | None = number(None, at_least=1)
    """Take the first so many rows only; null takes all."""
    reward: RewardChoice = ""
    """What scores, as `reward` of the run: a name or path, a list, or a map; empty takes the run's."""
    workflow: str = ""
    """Workflow: registry name or importable path; empty takes the run's workflow with its options."""
    workflow_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of this source's own workflow."""
    gconfig: GenerationConfig | None = None
    """Sampling, at the run's temperature; null takes the run's gconfig."""
    pass_reward: float = 1.0
    """A sample passes, for pass rates, when its reward is at least this."""

    def __post_init__(self) -> None:
        """Check that options belong to something."""
        super().__post_init__()
        if self.reward != "":
            resolve_components(self.reward)
        if self.workflow_options and not self.workflow:
            raise ConfigError(
                "workflow_options are set without workflow: an empty workflow takes the run's, with the run's options",
                fix="name the workflow, or remove workflow_options",
            )


def check_sources(
    sources: Mapping[str, SourceConfig], gconfig: GenerationConfig, dataset: DatasetConfig, overlong_buffer: int
) -> None:
    """Check sources against the rest of the configuration: the run's sampling, its train_dataset, its length limit.

    Raises ConfigError.
    """
    if sources and dataset.name:
        raise ConfigError(
            f"train_dataset is {dataset.name!r}, and there are sources, too",
            where="train_dataset.name",
            fix="make it one of the sources, or remove sources",
        )
    for name, source in sources.items():
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(
                f"sources has {name!r}; names are part of metrics, expected letters, digits, '_', '-' and '.'",
                fix="rename the source",
            )
        own = source.gconfig
        if own is None:
            continue
        # The trainer computes probabilities at one temperature: the ratios of other samples would be wrong.
        if (own.greedy, own.temperature) != (gconfig.greedy, gconfig.temperature):
            raise ConfigError(
                f"sources.{name}.gconfig samples at temperature {own.temperature:g} (greedy: {own.greedy}), the run at "
                f"{gconfig.temperature:g} (greedy: {gconfig.greedy}); one loss needs one temperature",
                where=f"sources.{name}.gconfig.temperature",
                fix=f"set sources.{name}.gconfig.temperature to {gconfig.temperature:g}, or the run's gconfig to both",
            )
        if overlong_buffer and own.max_new_tokens != gconfig.max_new_tokens:
            raise ConfigError(
                f"objective.overlong_buffer counts back from gconfig.max_new_tokens {gconfig.max_new_tokens}, and "
                f"sources.{name} stops at {own.max_new_tokens}",
                where=f"sources.{name}.gconfig.max_new_tokens",
                fix="give all sources the same max_new_tokens, or set objective.overlong_buffer to 0",
            )
