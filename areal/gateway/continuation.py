"""Warns when clients do not continue their conversations: each answer is then a short leaf that repeats its context.

A client that writes earlier answers anew, drops turns or changes the system text begins a new root with each request.
Training on that is exact, and wasteful; what is at fault is the client or its settings, so it is named once.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.gateway.capture import TurnDifference
    from areal.gateway.sessions import Session

logger = getLogger(__name__)

SESSIONS: Final = 10
LEAST_SHARE: Final = 0.5
_EXPECTED: Final = ("first", "side")


class ContinuationWatch:
    """What the last sessions of a gateway continued, of those that could."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, Counter[str], Mapping[str, TurnDifference]]] = deque(maxlen=SESSIONS)
        self._named: set[str] = set()

    def note(self, session: Session) -> None:
        """Look at a session that is closed; log a warning when the last ten continued less than half of their answers,
        with the commonest reason and its first difference, once for each reason.
        """
        share = session.statistics().get("exact_continuation")
        if share is None:
            return
        roots = {how[5:]: count for how, count in session.placed.items() if how.startswith("root/")}
        self._recent.append((share, Counter(roots), session.differences))
        mean = sum(share for share, _, _ in self._recent) / len(self._recent)
        if len(self._recent) < SESSIONS or mean >= LEAST_SHARE:
            return
        reasons = sum((roots for _, roots, _ in self._recent), Counter())
        for expected in _EXPECTED:
            del reasons[expected]
        if not reasons:
            return
        name, count = reasons.most_common(1)[0]
        if name in self._named:
            return
        self._named.add(name)
        found = next((differences[name] for _, _, differences in self._recent if name in differences), None)
        logger.warning(
            "of the last %d sessions' answers only %.0f %% continue another; the others repeat their context as new "
            "leaves, most often since %r (%d times)%s; see docs/agents.md",
            SESSIONS, 100 * mean, name, count, f": {found}" if found is not None else "",
        )  # fmt: skip
