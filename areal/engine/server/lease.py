"""Records which trainer owns a server, inside a worker process: an active owner keeps other trainers out.

Runs in the server's own environment (see `receiver`): standard library only. Servers started by the trainer itself need
no lease, because nobody else knows them.
"""

from __future__ import annotations

import time
from typing import Final

LEASE_SECONDS: Final = 30.0
"""A trainer that has not been in contact for this long loses the server."""


class Lease:
    """Lease of one server. An owner is a unique string; empty for a trainer that needs no lease."""

    def __init__(self) -> None:
        self.owner = ""
        self._heard = 0.0

    def hear(self, owner: str) -> None:
        """Record contact with the owner; ignore others."""
        if owner and owner == self.owner:
            self._heard = time.monotonic()

    def take(self, owner: str) -> str:
        """Make `owner` the owner; return why that is refused, empty on success."""
        silent = time.monotonic() - self._heard
        if self.owner not in ("", owner) and silent < LEASE_SECONDS:
            return (
                f"it serves another trainer ({self.owner}, last contact {silent:.0f} s ago); stop that trainer or use "
                f"other servers"
            )
        self.owner = owner
        self.hear(owner)
        return ""

    def release(self, owner: str) -> None:
        """Release the server if `owner` holds it."""
        if owner == self.owner:
            self.owner = ""
