"""Configures what is measured on held-out rows, and what follows: exports of the best model, an early end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import Config, ConfigError, GenerationConfig, number
from areal.dataset.config import DatasetConfig
from areal.reward.components import RewardChoice, resolve_components

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES: Final[dict[str, str]] = {
    "auto": "areal.trainer.evaluation.answers:auto",
    "boxed": "areal.trainer.evaluation.answers:boxed",
    "number": "areal.trainer.evaluation.answers:number",
    "text": "areal.trainer.evaluation.answers:text",
}
"""Name to the function that finds the answer in a completion."""


def check_own_scoring(reward: RewardChoice, workflow: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the reward and workflow of an evaluation set or a source, where it has its own, are ones
    that can be resolved, and options belong to a workflow.
    """
    if reward != "":
        resolve_components(reward)
    if options and not workflow:
        raise ConfigError(
            "workflow_options are set without workflow: an empty workflow takes the run's, with the run's options",
            fix="name the workflow, or remove workflow_options",
        )


@dataclass(frozen=True, kw_only=True)
class EvalSetConfig(Config):
    """A named set of rows that answers are sampled and scored for."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Rows; visited in file order, shuffle is ignored."""
    rows: int | None = number(None, at_least=1)
    """Evaluate the first so many rows; null takes all."""
    samples: int = number(1, at_least=1)
    """Answers per row: the n of avg@n, and the largest k of pass@k and maj@k."""
    gconfig: GenerationConfig | None = None
    """Sampling; null takes the run's gconfig, greedy where there is one sample per row."""
    reward: RewardChoice = ""
    """What scores, as `reward` of the run: a name or path, a list, or a map; empty takes the run's."""
    workflow: str = ""
    """Workflow: registry name or importable path; empty takes the run's workflow with its options."""
    workflow_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of this set's own workflow."""
    pass_reward: float = 1.0
    """A sample passes, for pass@k, when its reward is at least this."""
    answer: str = "auto"
    """What samples vote with, for maj@k: auto, boxed, number, text, or an importable function from text to text or
    None; see docs/evaluation.md."""

    def __post_init__(self) -> None:
        """Check that options belong to something and that samples can differ."""
        super().__post_init__()
        check_own_scoring(self.reward, self.workflow, self.workflow_options)
        if self.gconfig is not None and self.gconfig.greedy and self.samples > 1:
            raise ConfigError(
                f"samples is {self.samples} and gconfig.greedy is true: all samples of a row would be the same",
                fix="set samples to 1, or gconfig.greedy to false",
            )


def sizes(samples: int) -> tuple[int, ...]:
    """Values of k that `samples` samples per row are reported for: powers of two, and all of them."""
    powers = [2**exponent for exponent in range(samples.bit_length())]
    return tuple(sorted({k for k in (*powers, samples) if k <= samples}))


def metrics_of(chosen: EvalSetConfig) -> tuple[str, ...]:
    """Names of the scores of a set. maj@k begins at 3 samples: of one or two, the vote is their mean."""
    passes = [f"pass@{k}" for k in sizes(chosen.samples)]
    return (f"avg@{chosen.samples}", *passes, *(f"maj@{k}" for k in sizes(chosen.samples) if k > 2))


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Config):
    """Hugging Face folders written while a run goes on, into exports/ of its directory."""

    every_steps: int = number(0, at_least=0)
    """Write one after this many steps; 0 writes none by steps."""
    keep: int = number(2, at_least=1)
    """Newest ones to keep of those written by steps; the best one is kept besides."""
    best_metric: str = ""
    """Also write one whenever this metric of a step is better than ever before, e.g. eval/test/avg@1; empty does not.
    """
    mode: Literal["max", "min"] = "max"
    """Whether more (max) or less (min) of best_metric is better."""
    push_to_hub: str = ""
    """Publish final/ as this model repository of the hub, org/name or org/name@branch, when the run has finished; empty
    does not. The token comes from HF_TOKEN or `hf auth login`."""
    push_private: bool = True
    """Make a new repository private."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopConfig(Config):
    """End a run that does not get better."""

    metric: str = ""
    """Metric that is watched, e.g. eval/test/avg@1; steps that do not have it are passed over. Required."""
    patience: int = number(3, at_least=1)
    """End after this many values in a row without an improvement."""
    min_delta: float = number(0.0, at_least=0)
    """Only a change of more than this is an improvement."""
    mode: Literal["max", "min"] = "max"
    """Whether more (max) or less (min) of the metric is better."""

    def __post_init__(self) -> None:
        """Check that something is watched."""
        super().__post_init__()
        if not self.metric:
            raise ConfigError("early_stop.metric is empty; name a metric, e.g. eval/test/avg@1", fix="set metric")
