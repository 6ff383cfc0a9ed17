"""Configuration of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """When state is saved for recovery, and how much is kept."""

    every_seconds: float = number(120.0, at_least=0)
    """Save recovery state after the first step that ends this many seconds or more after the last save; 0 saves by
    steps alone, at the end, and on SIGTERM/SIGINT. Saving changes no result."""
    max_overhead: float = number(0.03, above=0, at_most=1)
    """Largest share of the time that saves by seconds may take: after a slow one, the next waits longer."""
    every_steps: int = number(0, at_least=0)
    """Save also after every this many steps, whatever that costs; 0 is off."""
    keep: int = number(2, at_least=1)
    """Newest checkpoints to keep; older ones are removed after a new one is complete."""
    resume: bool = True
    """Continue from the newest intact checkpoint of the run directory when there is one."""
    allow_config_change: bool = False
    """Resume although the configuration differs from the checkpoint's in something that changes training."""
    max_write_failures: int = number(3, at_least=1)
    """Consecutive saves of `every_steps` that may fail (disk full, permission) before the run stops. Each failure is
    reported, training goes on, and the save is tried again after 1, 2, 4, ... steps. Saves by time may fail for ever:
    the run goes on and takes the disk as soon as it has room."""
