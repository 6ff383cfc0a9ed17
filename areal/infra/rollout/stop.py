"""How a thread that waits for rollouts hears that the run shall stop: it looks, several times a second.

A signal only sets a flag (`areal.infra.checkpoint.signals`), and a thread that waits for a straggler would look at that
flag when the straggler is done: too late for a machine that is taken away seconds after SIGTERM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from areal.api import RolloutError

if TYPE_CHECKING:
    from collections.abc import Callable

    ShouldStop = Callable[[], bool]

POLL_INTERVAL_SECONDS: Final = 0.2


class RolloutStoppedError(RolloutError):
    """The caller asked to stop while it waited. Nothing was handed out: the state is that between two steps."""


def never() -> bool:
    """For callers that are not asked to stop."""
    return False
