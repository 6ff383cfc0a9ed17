"""Whose weights a server has, in one of its worker processes: a trainer that is heard of keeps others out.

Runs in the server's own environment (see `receiver`): standard library only. Servers that a trainer started itself need
no lease, for nobody else knows them.
"""

from __future__ import annotations

import time
from typing import Final

LEASE_SECONDS: Final = 30.0
"""A trainer that was not heard of for so long has lost the server."""


class Lease:
    """Of one server. An owner is a word that nobody else uses; empty for a trainer that needs no lease."""

    def __init__(self) -> None:
        self.owner = ""
        self._heard = 0.0

    def hear(self, owner: str) -> None:
        """The owner is alive; of others nothing is noted."""
        if owner and owner == self.owner:
            self._heard = time.monotonic()

    def take(self, owner: str) -> str:
        """Make `owner` the owner; returns why not, empty when it is."""
        silent = time.monotonic() - self._heard
        if self.owner not in ("", owner) and silent < LEASE_SECONDS:
            return (
                f"it serves another trainer ({self.owner}, heard of {silent:.0f} s ago); stop that one, or use other "
                f"servers"
            )
        self.owner = owner
        self.hear(owner)
        return ""

    def release(self, owner: str) -> None:
        """The owner does not need the server any more."""
        if owner == self.owner:
            self.owner = ""
