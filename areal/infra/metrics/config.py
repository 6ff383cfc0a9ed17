"""Configuration of metric sinks. metrics.jsonl is always written; the others are additions."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class MetricsConfig(Config):
    """Where numbers and sampled rollouts go."""

    tensorboard: bool = False
    """Also write TensorBoard event files under the run directory (needs the `tensorboard` extra)."""
    wandb_project: str = ""
    """Also log to this Weights & Biases project (needs the `wandb` extra); empty is off."""
    rollouts_per_step: int = number(4, at_least=0)
    """Prompt groups per step whose trajectories are kept in rollouts.jsonl for the report; 0 keeps none."""
    progress: bool = True
    """Show a live view when the output is a terminal; otherwise one line per step goes to the log."""
