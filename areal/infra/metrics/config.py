"""Configuration of metrics. metrics.jsonl is always written; trackers get copies of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from areal.api import Config, ConfigError, number
from areal.infra.metrics.trackers.config import TrackersConfig


@dataclass(frozen=True, kw_only=True)
class TraceConfig(Config):
    """A trace of trainer, rollouts, rewards, servers and weight updates, for ui.perfetto.dev."""

    steps: tuple[int, int] = (2, 3)
    """First and last training step that is recorded, counted from 1; the file is trace/step-FIRST.json of the run."""

    def __post_init__(self) -> None:
        """Check the order."""
        super().__post_init__()
        if not 1 <= self.steps[0] <= self.steps[1]:
            first, last = self.steps
            raise ConfigError(
                f"steps is [{first}, {last}], expected the first and the last step, counted from 1",
                fix="write for example steps: [10, 12]",
            )


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(Config):
    """A profile of the trainer's operations by torch.profiler, on the first process."""

    start_step: int = number(2, at_least=1)
    """First training step that is profiled, counted from 1; the first step of a run is not typical."""
    steps: int = number(1, at_least=1)
    """Steps that are profiled; a profile of many is large."""
    memory: bool = False
    """Also record allocations of tensors."""
    shapes: bool = False
    """Also record shapes of the operations' arguments."""
    stacks: bool = False
    """Also record where in the source operations are called; slow."""

    @property
    def covered(self) -> range:
        """Steps that are profiled."""
        return range(self.start_step, self.start_step + self.steps)


@dataclass(frozen=True, kw_only=True)
class MetricsConfig(Config):
    """Where numbers and sampled rollouts go."""

    trackers: TrackersConfig = field(default_factory=TrackersConfig)
    """Services and files that get a copy: Weights & Biases, MLflow, TensorBoard and others."""
    trace: TraceConfig | None = None
    """Record what happens when, over chosen steps; null records nothing."""
    profile: ProfileConfig | None = None
    """Profile the trainer's operations over chosen steps; null profiles nothing."""
    rollouts_per_step: int = number(4, at_least=0)
    """Prompt groups per step whose trajectories are kept in rollouts.jsonl for the report; 0 keeps none."""
    pictures: int = number(256, at_least=0)
    """Images of kept rollouts that get a small picture in RUN/pictures for the report, in the whole run; later ones are
    named by digest and size only."""
    progress: bool = True
    """Show a live view when the output is a terminal; otherwise each step is a line of the log, and
    what takes more than 30 s says meanwhile how far it is."""
