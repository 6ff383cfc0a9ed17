"""Configuration of a launch."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, ConfigError


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Config):
    """How many processes, how often they may fail, and how long they may take to end."""

    num_ranks: int = 1
    """Processes, numbered from 0; each finds its number in RANK and all find their count in WORLD_SIZE."""
    max_restarts: int = 3
    """Further starts of all ranks after one failed; a start that lived for restart_reset_seconds forgets the earlier
    ones. Errors that another start would only repeat (wrong configuration, bad rows, ...) are not tried again."""
    restart_reset_seconds: float = 1800.0
    """See max_restarts."""
    restart_pause_seconds: float = 1.0
    """Before the first restart; doubles with every further one, up to a minute."""
    grace_seconds: float = 60.0
    """Between SIGTERM and SIGKILL when the launch itself is asked to stop: time to finish a step and save."""
    failure_grace_seconds: float = 5.0
    """The same for the other ranks when one failed: they wait for it in vain and have nothing to save."""
    progress_file: str = ""
    """A file that changes as long as the run gets on, e.g. its metrics.jsonl; needed by stall_seconds."""
    stall_seconds: float = 0.0
    """Without a change of progress_file for this long, all ranks are killed and started again; 0 never."""
    keep_logs: int = 5
    """Starts whose logs are kept."""

    def __post_init__(self) -> None:
        """Refuse counts and times that make no launch."""
        for name in ("num_ranks", "keep_logs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("max_restarts", "restart_pause_seconds", "restart_reset_seconds", "grace_seconds",
                     "failure_grace_seconds", "stall_seconds"):  # fmt: skip
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected >= 0")
        if self.stall_seconds and not self.progress_file:
            raise ConfigError("stall_seconds needs progress_file: without it nobody knows whether the run gets on")
