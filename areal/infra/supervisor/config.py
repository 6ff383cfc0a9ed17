"""Configures supervised server processes."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, ConfigError


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig(Config):
    """Time limits of servers, and how often they may fail."""

    startup_seconds: float = 600.0
    """Seconds from the start of a process to its first successful health check and weights; longer is a failed start.
    """
    poll_seconds: float = 1.0
    """Seconds between two polls of a server."""
    health_timeout_seconds: float = 10.0
    """Seconds after which a health check counts as missed."""
    max_missed_health_checks: int = 3
    """Consecutive missed checks before a server counts as hanging and is killed."""
    max_restarts: int = 3
    """Restarts of one server before it is retired; restart_reset_seconds without a failure reset the count."""
    restart_reset_seconds: float = 600.0
    """See max_restarts."""
    restart_pause_seconds: float = 1.0
    """Seconds before the first restart; doubles with each further one, up to a minute."""
    grace_seconds: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    keep_logs: int = 5
    """Log files kept per server, one per start."""

    def __post_init__(self) -> None:
        """Reject times and counts that no server can meet."""
        for name in ("startup_seconds", "poll_seconds", "health_timeout_seconds", "restart_reset_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected > 0")
        for name in ("max_restarts", "restart_pause_seconds", "grace_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected >= 0")
        for name in ("max_missed_health_checks", "keep_logs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
