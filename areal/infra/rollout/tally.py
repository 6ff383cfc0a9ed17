"""Counts of everything that went wrong, and the limits at which a run stops instead of spinning."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from areal.api import FaultKind, RolloutError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from areal.api import Fault
    from areal.infra.rollout.config import RolloutConfig

logger = getLogger(__name__)

ZERO_VARIANCE = "zero_variance"
"""Drop reason: all samples have the same reward, and the run filters such prompts."""
REJECTED = "rejected"
"""Drop reason: the workflow returned None for too many samples."""
STALE = "stale"
"""Drop reason: too old to be trained, under consume="drop"."""
_ON_PURPOSE = frozenset({ZERO_VARIANCE, REJECTED})


class FailureTally:
    """Counts of one run. `dropped` and `faults` hold what is new since the last `flush`."""

    def __init__(self, config: RolloutConfig) -> None:
        self._max_failures = config.max_consecutive_failures
        self._max_filtered = config.max_filtered_batches * config.batch_size
        self._failures_in_row = 0
        self._filtered_in_row = 0
        self._last_message: dict[str, str] = {}
        self._total_faults: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    @property
    def total_faults(self) -> Mapping[str, int]:
        """Failed attempts of the whole run, by kind."""
        return self._total_faults

    def record_faults(self, faults: Iterable[Fault]) -> None:
        """Count failed attempts; the first of each kind is shown, since a run may lose samples to its end unnoticed."""
        for fault in faults:
            # A workflow that raised has been logged with its traceback already.
            if fault.kind.value not in self._last_message and fault.kind is not FaultKind.WORKFLOW_RAISED:
                logger.warning("first fault of kind %s: %s (further ones are counted)", fault.kind.value, fault.message)
            self.faults[fault.kind.value] += 1
            self._total_faults[fault.kind.value] += 1
            self._last_message[fault.kind.value] = fault.message

    def record_success(self) -> None:
        """A prompt survived: nothing is "in a row" any more."""
        self._failures_in_row = self._filtered_in_row = 0

    def record_drop(self, reason: str) -> None:
        """A prompt was dropped. Raises RolloutError when that was one too many in a row."""
        self.dropped[reason] += 1
        if reason in _ON_PURPOSE:
            self._filtered_in_row += 1
        elif reason != STALE:
            self._failures_in_row += 1
        if self._failures_in_row >= self._max_failures:
            raise RolloutError(
                f"{self._failures_in_row} prompts in a row were dropped for faults (max_consecutive_failures = "
                f"{self._max_failures}). Failed attempts since the start, with the last message of each kind:\n"
                f"{self.table()}"
            )
        if self._filtered_in_row >= self._max_filtered:
            raise RolloutError(
                f"{self._filtered_in_row} prompts in a row were dropped on purpose, last for {reason!r} "
                f"(max_filtered_batches times batch_size = {self._max_filtered}). With zero_variance the task is too "
                f"easy or too hard for the policy, or the reward is constant; with rejected, workflows return None.\n"
                f"{self.table()}"
            )

    def table(self) -> str:
        """One line per kind of fault, most frequent first."""
        lines = [f"  {kind:<18} {n:>7}  {self._last_message[kind]}" for kind, n in self._total_faults.most_common()]
        return "\n".join(lines) or "  (no faults)"

    def flush(self) -> tuple[dict[str, int], dict[str, int]]:
        """(dropped, faults) since the last call."""
        window = dict(self.dropped), dict(self.faults)
        self.dropped.clear()
        self.faults.clear()
        return window

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "faults": dict(self._total_faults),
            "last_message": dict(self._last_message),
            "failures_in_row": self._failures_in_row,
            "filtered_in_row": self._filtered_in_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._total_faults = Counter({str(kind): int(number) for kind, number in state["faults"].items()})
        self._last_message = {str(kind): str(message) for kind, message in state["last_message"].items()}
        self._failures_in_row = int(state["failures_in_row"])
        self._filtered_in_row = int(state["filtered_in_row"])
