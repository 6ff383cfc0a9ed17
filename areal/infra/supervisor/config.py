"""Configuration of supervised server processes."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, ConfigError


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig(Config):
    """How long servers may take, and how often they may fail."""

    startup_seconds: float = 600.0
    """From the start of a process to its first good health check and weights; longer is a failed start."""
    poll_seconds: float = 1.0
    """Pause between two looks at a server."""
    health_timeout_seconds: float = 10.0
    """A health check that takes longer counts as missed."""
    max_missed_health_checks: int = 3
    """Missed in a row before a server counts as hanging and is killed."""
    max_restarts: int = 3
    """Further starts of one server before it is given up; a stretch of restart_reset_seconds without a failure
    forgets the earlier ones."""
    restart_reset_seconds: float = 600.0
    """See max_restarts."""
    restart_pause_seconds: float = 1.0
    """Before the first restart; doubles with every further one, up to a minute."""
    grace_seconds: float = 10.0
    """Between SIGTERM and SIGKILL."""
    keep_logs: int = 5
    """Log files kept per server, one per start."""

    def __post_init__(self) -> None:
        """Refuse times and counts that no server can meet."""
        for name in ("startup_seconds", "poll_seconds", "health_timeout_seconds", "restart_reset_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected > 0")
        for name in ("max_restarts", "restart_pause_seconds", "grace_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected >= 0")
        for name in ("max_missed_health_checks", "keep_logs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
