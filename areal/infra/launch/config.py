"""Configuration of a launch."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, ConfigError, number


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Config):
    """How many processes, how often they may fail, and how long they may take to end."""

    num_ranks: int = number(1, at_least=1)
    """Processes, numbered from 0; each finds its number in RANK and all find their count in WORLD_SIZE."""
    max_restarts: int = number(3, at_least=0)
    """Further starts of all ranks after one failed; a start that lived for restart_reset_seconds forgets the earlier
    ones. Errors that another start would only repeat (wrong configuration, bad rows, ...) are not tried again."""
    restart_reset_seconds: float = number(1800.0, at_least=0)
    """See max_restarts."""
    restart_pause_seconds: float = number(1.0, at_least=0)
    """Before the first restart; doubles with every further one, up to a minute."""
    grace_seconds: float = number(60.0, at_least=0)
    """Between SIGTERM and SIGKILL when the launch itself is asked to stop: time to finish a step and save."""
    failure_grace_seconds: float = number(5.0, at_least=0)
    """The same for the other ranks when one failed: they wait for it in vain and have nothing to save."""
    progress_file: str = ""
    """A file that changes as long as the run gets on, e.g. its metrics.jsonl; needed by stall_seconds."""
    stall_seconds: float = number(0.0, at_least=0)
    """Without a change of progress_file for this long, all ranks are killed and started again; 0 never."""
    keep_logs: int = number(5, at_least=1)
    """Starts whose logs are kept."""

    def __post_init__(self) -> None:
        """Check that a stalled run could be noticed."""
        super().__post_init__()
        if self.stall_seconds and not self.progress_file:
            raise ConfigError("stall_seconds needs progress_file: without it nobody knows whether the run gets on")
