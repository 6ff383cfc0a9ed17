"""Configures supervised server processes."""

from __future__ import annotations

from dataclasses import dataclass

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig(Config):
    """Time limits of servers, and how often they may fail."""

    startup_seconds: float = number(600.0, above=0)
    """Seconds from the start of a process to its first successful health check and weights; longer is a failed start.
    """
    poll_seconds: float = number(1.0, above=0)
    """Seconds between two polls of a server."""
    health_timeout_seconds: float = number(10.0, above=0)
    """Seconds after which a health check counts as missed."""
    max_missed_health_checks: int = number(3, at_least=1)
    """Consecutive missed checks before a server counts as hanging and is killed."""
    max_restarts: int = number(3, at_least=0)
    """Restarts of one server before it is retired; restart_reset_seconds without a failure reset the count."""
    restart_reset_seconds: float = number(600.0, above=0)
    """See max_restarts."""
    restart_pause_seconds: float = number(1.0, at_least=0)
    """Seconds before the first restart; doubles with each further one, up to a minute."""
    grace_seconds: float = number(10.0, at_least=0)
    """Seconds between SIGTERM and SIGKILL."""
    keep_logs: int = number(5, at_least=1)
    """Log files kept per server, one per start."""
