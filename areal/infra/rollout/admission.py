"""Which prompts may start, and which finished ones form the next batch: the hard staleness bound. Pure decisions.

Let B be `batch_size`, S `max_head_offpolicyness`, and v the current version; training a batch at v leads to v + 1.

Admission: at most (S + 1) * B prompts are live. A prompt keeps its slot until its batch has been *trained*; freeing
slots when a batch is handed out would admit one batch too many and weaken the bound to S + 1.

The bound: a batch that is trained at v holds only prompts admitted at v - S or later. So no trained token is older than
S versions, since no token of a prompt is older than its admission.

fifo      The batch is the B oldest live prompts. At its admission a prompt has at most (S + 1) * B - 1 others before
          it, and later ones never overtake it; each version takes B from the front, so its turn comes within S
          versions. A dropped prompt only moves the others forward: its replacement queues at the end.
deadline  A prompt admitted at a must be in the batch of version a + S at the latest: its deadline. Invariant before
          every batch: for each d >= v, at most B * (d - v + 1) live prompts have a deadline <= d. Admission keeps it:
          deadlines already there are smaller, and the total for d = v + S is at most (S + 1) * B. A batch may be taken
          if, for each d, at most B * (d - v) of the prompts left behind have a deadline <= d: that is the invariant at
          v + 1. Of the finished prompts those with the earliest deadlines are tried, which is optimal: if they do not
          satisfy the condition no other choice does. Once everything has finished they always satisfy it, so there is
          no deadlock.
drop      The batch is the B finished prompts that finished first. A prompt whose deadline has passed is dropped, in
          flight or finished, and replaced. The bound holds by construction; the price is a bias against long answers.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from areal.infra.rollout.ledger import PromptState

if TYPE_CHECKING:
    from areal.infra.rollout.config import RolloutConfig
    from areal.infra.rollout.ledger import LivePrompt, PromptLedger


class AdmissionPolicy:
    """Decisions of one run; holds no state besides its configuration."""

    def __init__(self, config: RolloutConfig) -> None:
        self._batch_size = config.batch_size
        self._bound = config.max_head_offpolicyness
        self._max_live = (config.max_head_offpolicyness + 1) * config.batch_size
        self._max_in_flight = config.max_concurrent_prompts or self._max_live
        self._select = {"fifo": self._oldest, "deadline": self._feasible, "drop": self._first_finished}[config.consume]
        self._drops = config.consume == "drop"

    def room(self, ledger: PromptLedger) -> int:
        """How many further prompts may be admitted now."""
        in_flight = ledger.count(PromptState.IN_FLIGHT)
        return max(0, min(self._max_live - len(ledger.live), self._max_in_flight - in_flight))

    def select(self, ledger: PromptLedger, version: int) -> tuple[int, ...] | None:
        """Ordinals of the batch to train at `version`, ascending; None when the trainer has to wait."""
        if ledger.count(PromptState.FINISHED) < self._batch_size:
            return None
        chosen = self._select(ledger, version)
        return None if chosen is None else tuple(sorted(prompt.ordinal for prompt in chosen))

    def expired(self, ledger: PromptLedger, version: int) -> tuple[int, ...]:
        """Ordinals that may no longer be trained at `version`; always empty unless the policy is "drop"."""
        if not self._drops:
            return ()
        return tuple(
            prompt.ordinal for prompt in ledger.live.values() if prompt.admitted_version + self._bound < version
        )

    def _oldest(self, ledger: PromptLedger, version: int) -> list[LivePrompt] | None:
        chosen: list[LivePrompt] = []
        for prompt in ledger.live.values():
            if prompt.state is not PromptState.FINISHED:
                return None
            chosen.append(prompt)
            if len(chosen) == self._batch_size:
                return chosen
        return None

    def _feasible(self, ledger: PromptLedger, version: int) -> list[LivePrompt] | None:
        finished = [prompt for prompt in ledger.live.values() if prompt.state is PromptState.FINISHED]
        finished.sort(key=lambda prompt: (prompt.admitted_version, prompt.finished_order))
        chosen = finished[: self._batch_size]
        left_by_deadline = Counter(prompt.admitted_version + self._bound for prompt in ledger.live.values())
        left_by_deadline.subtract(prompt.admitted_version + self._bound for prompt in chosen)
        deadlines = sorted(left_by_deadline)
        due = accumulate(left_by_deadline[deadline] for deadline in deadlines)
        fits = all(number <= self._batch_size * (d - version) for d, number in zip(deadlines, due, strict=True))
        return chosen if fits else None

    def _first_finished(self, ledger: PromptLedger, version: int) -> list[LivePrompt] | None:
        finished = [prompt for prompt in ledger.live.values() if prompt.state is PromptState.FINISHED]
        return sorted(finished, key=lambda prompt: prompt.finished_order)[: self._batch_size]
