"""What a directory stores: entries under a kind and a name, each with an owner and a lease; the rules of a store.

The newest announcement of a name replaces the one before, whose owner learns of it at its next renewal. An `exclusive`
announcement instead fails while another owner's lease runs. A renewal carries the whole entry, so that a store that was
started anew, or that let a lease run out while the network was away, has everything again after one round of renewals.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from areal.api import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VALUE_BYTES: Final = 64 * 1024
_WORD: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedEntry:
    """One entry as its owner last sent it."""

    kind: str
    name: str
    owner: str
    """Random; one per announcement."""
    seconds: float
    """From the last renewal to the end of the entry."""
    value: Mapping[str, Any]


class LeaseStore(Protocol):
    """Where leases are kept. Methods may be called by several threads.

    All raise EngineError when the store cannot be reached or does not accept the key.
    """

    def put(self, lease: LeasedEntry, *, new: bool, exclusive: bool) -> bool:
        """Write or renew; return False, and change nothing, when the name belongs to another live owner.

        new: the first call of an announcement, which takes the name over unless it is `exclusive`.
        """
        ...

    def drop(self, lease: LeasedEntry) -> None:
        """Remove the entry if it still belongs to the lease's owner."""
        ...

    def entries(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return name to value of all live entries, sorted by name."""
        ...

    def wait(self, kind: str, count: int, seconds: float) -> dict[str, dict[str, Any]]:
        """Return the same as soon as there are `count`, or when the time is over."""
        ...

    def close(self) -> None:
        """Give up connections. Idempotent."""
        ...


def check_word(word: object, what: str) -> str:
    """Return a kind or name. Raises UsageError unless it is fit for a file name everywhere."""
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise UsageError(
            f"{what} is {str(word)[:150]!r}, expected 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"
        )
    return word


def check_lease(lease: LeasedEntry) -> LeasedEntry:
    """Return it. Raises UsageError for names, times or values that a store does not take."""
    check_word(lease.kind, "kind")
    check_word(lease.name, "name")
    check_word(lease.owner, "owner")
    if isinstance(lease.seconds, bool) or not isinstance(lease.seconds, (int, float)) or not 0 < lease.seconds < 1e6:
        raise UsageError(f"lease_seconds is {lease.seconds!r}, expected a number above 0 and below 1,000,000")
    if not isinstance(lease.value, dict):
        raise UsageError(f"value is of type {type(lease.value).__name__}, expected a dictionary")
    try:
        size = len(json.dumps(lease.value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"value of {lease.kind} {lease.name} cannot be written as JSON: {error}") from error
    if size > MAX_VALUE_BYTES:
        raise UsageError(f"value of {lease.kind} {lease.name} takes {size} bytes, expected at most {MAX_VALUE_BYTES}")
    return lease
