"""Stop a run whose reward hangs or crashes, while it still costs seconds.

Every lost call costs the time limit, and with many samples waiting for few reward processes the prompts that would have
to be dropped in a row are hours away. What counts here are samples, in the order in which their calls were lost,
whatever prompt they belong to and however long they waited in the queue; a sample that is tried again counts once, and
any sample that gets through starts the count anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from areal.api import FaultKind, RolloutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.api import Fault
    from areal.infra.rollout.config import RolloutConfig
    from areal.infra.rollout.episode import EpisodeJob

_LOST: Final = (FaultKind.REWARD_TIMEOUT, FaultKind.REWARD_DIED)
_ANSWERED: Final = (FaultKind.REWARD_RAISED, FaultKind.REWARD_INVALID)
_FIRST_SAMPLES: Final = 4
"""Before anything was scored, this many samples are enough, unless they are of one odd row and the reward answered
for another one."""


class LostRewards:
    """Counts samples whose reward timed out or lost its process, and ends the run that has no others."""

    def __init__(self, config: RolloutConfig, *, place: Callable[[EpisodeJob], str] | None = None) -> None:
        """place: a sample in words, with its row; None takes `place_of`."""
        self._limit = config.max_lost_rewards
        self._place = place or place_of
        self._scored = False
        self._answered: set[int] = set()
        """Prompts for which the reward returned something else than a score, or raised."""
        self._lost: dict[tuple[int, int], tuple[EpisodeJob, Fault]] = {}

    def note(self, job: EpisodeJob, fault: Fault | None) -> None:
        """Take in one attempt at a sample; None when it succeeded.

        Raises RolloutError when too many in a row were lost, naming reward, rows, seconds and exits.
        """
        if fault is None:
            self._scored = True
            self._lost.clear()
        elif fault.kind in _ANSWERED:
            self._answered.add(job.ordinal)
        elif fault.kind in _LOST:
            self._lost[job.ordinal, job.sample_index] = (job, fault)
            if len(self._lost) >= self._limit or (len(self._lost) >= _FIRST_SAMPLES and self._hopeless()):
                raise self._error()

    def _hopeless(self) -> bool:
        """Whether nothing was ever scored, and it is not just one row that the reward cannot take."""
        prompts = {ordinal for ordinal, _ in self._lost}
        return not self._scored and (len(prompts) > 1 or self._answered <= prompts)

    def _error(self) -> RolloutError:
        lost = list(self._lost.values())
        slow = sum(fault.kind is FaultKind.REWARD_TIMEOUT for _, fault in lost)
        counts = {"timed out": slow, "lost the process": len(lost) - slow}
        how = " and ".join(f"{number} {what}" for what, number in counts.items() if number)
        since = "in between" if self._scored else "since the start"
        lines = [f"  {self._place(job)}: {fault.message}" for job, fault in (lost[0], lost[-1])]
        return RolloutError(
            f"the reward of {len(lost)} samples in a row was lost ({how}) and no sample was scored {since}. The first "
            f"and the last:\n" + "\n".join(lines),
            where="reward",
            fix="call the reward on that row by itself; raise rollout.reward_timeout_seconds if it may take longer, "
            "rollout.max_lost_rewards if such answers are to be expected",
        )


def place_of(job: EpisodeJob, dataset: str = "") -> str:
    """`prompt 7, row 3 of dataset gsm8k, sample 0`, without what is unknown."""
    row = "" if job.row_index < 0 else f", row {job.row_index}"
    of = f" of dataset {dataset}" if row and dataset else ""
    return f"prompt {job.ordinal}{row}{of}, sample {job.sample_index}"
