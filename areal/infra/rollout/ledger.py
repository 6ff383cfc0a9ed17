"""Keep the account of prompts, and decide which may start and which form the next batch. No clocks, no threads.

Life of an ordinal:  waiting -> in flight -> finished -> in training -> trained
                        ^           |            |
                        |           +------------+--> dropped (with a reason)
                        +-----------+------------+    surplus of a batch

"Live" means admitted and neither trained nor dropped. Ordinals below the watermark are all trained or dropped and kept
only as counts; the sets above it are small, since the staleness bound keeps live prompts close together.

`AdmissionPolicy` holds the staleness bound. It is pure decisions.

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

Surplus: while the trainer waits, X = `surplus_prompts` more may be live. When it takes its batch, all but S * B of the
others end, so the surplus is gone before training begins.

fifo      The last ones admitted end, and wait to be admitted again before any new one. Those that stay have fewer than
          S * B before them, so the argument above holds for them. A prompt that is to be dropped counts as ended once
          all before it have: then a batch extends over the same ordinals whatever finishes first, it is the batch of a
          run without surplus, and, where S = 0, exactly X more ordinals than those have been admitted.
deadline  The same ones end. Until they do, no surplus prompt can be part of a batch, nor be dropped, however early it
          has finished: else those with short answers would be taken and the others sampled again until theirs are
          short, too. Of two runs that differ in nothing but the answer of a surplus prompt, both cancel it or neither.
          When a prompt that the bound admits is dropped, the oldest surplus prompt takes its place, with the deadline
          of its admission: while the trainer waits no version passes, so the invariant holds as after any admission.
drop      Those that would be too old first end, those in flight before those that have finished, and are dropped:
          admitted again, the same slow prompts would be cancelled in every step.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from areal.infra.rollout.config import RolloutConfig


class PromptState(StrEnum):
    """State of a live prompt."""

    IN_FLIGHT = "in_flight"
    FINISHED = "finished"
    IN_TRAINING = "in_training"


@dataclass(slots=True, kw_only=True)
class LivePrompt:
    """A prompt that holds a slot."""

    ordinal: int
    admitted_version: int
    state: PromptState = PromptState.IN_FLIGHT
    finished_order: int = -1
    """Position among all prompts in order of finishing; -1 before."""


class PromptLedger:
    """Bookkeeping of one run. Every method checks the transition it makes: a wrong one is a bug, AssertionError."""

    def __init__(self) -> None:
        self.live: dict[int, LivePrompt] = {}
        """By ordinal, in order of admission, which is ascending."""
        self.trained: dict[int, int] = {}
        """Ordinals above the watermark that were trained, to the training step."""
        self.dropped: dict[int, str] = {}
        """Ordinals above the watermark that were dropped, to the reason."""
        self.watermark = 0
        """All ordinals below are trained or dropped."""
        self.next_ordinal = 0
        """The first ordinal that was never admitted."""
        self.steps = 0
        """Batches trained."""
        self.num_trained = 0
        self.num_dropped: Counter[str] = Counter()
        self._waiting: deque[int] = deque()
        self._states: Counter[PromptState] = Counter()
        self._finished = 0

    def count(self, state: PromptState) -> int:
        """Live prompts in `state`."""
        return self._states[state]

    @property
    def num_waiting(self) -> int:
        """Prompts that were live when the state was saved, or surplus of a batch, and are not admitted again yet."""
        return len(self._waiting)

    @property
    def next_to_admit(self) -> int:
        """The ordinal that `admit` gives a slot next."""
        return self._waiting[0] if self._waiting else self.next_ordinal

    def admit(self, version: int) -> int:
        """Give the next ordinal a slot: first those that are owed from before, then new ones."""
        ordinal = self.next_to_admit
        if self._waiting:
            self._waiting.popleft()
        else:
            self.next_ordinal += 1
        self.live[ordinal] = LivePrompt(ordinal=ordinal, admitted_version=version)
        self._states[PromptState.IN_FLIGHT] += 1
        return ordinal

    def finish(self, ordinal: int) -> None:
        """All samples of the prompt are there."""
        prompt = self._move(ordinal, PromptState.IN_FLIGHT, PromptState.FINISHED)
        prompt.finished_order = self._finished
        self._finished += 1

    def take(self, ordinals: Iterable[int]) -> None:
        """Hand finished prompts to the trainer; they keep their slots until `train`."""
        for ordinal in ordinals:
            self._move(ordinal, PromptState.FINISHED, PromptState.IN_TRAINING)

    def train(self) -> int:
        """Count everything in training as trained, which frees its slots; return how many prompts that were."""
        ordinals = [prompt.ordinal for prompt in self.live.values() if prompt.state is PromptState.IN_TRAINING]
        for ordinal in ordinals:
            self._end(ordinal)
            self.trained[ordinal] = self.steps
        self.num_trained += len(ordinals)
        self.steps += 1
        self._raise_watermark()
        return len(ordinals)

    def drop(self, ordinal: int, reason: str) -> None:
        """End a prompt that will not be trained."""
        assert self.live[ordinal].state is not PromptState.IN_TRAINING, f"prompt {ordinal} is being trained"
        self._end(ordinal)
        self.dropped[ordinal] = reason
        self.num_dropped[reason] += 1
        self._raise_watermark()

    def requeue(self, ordinal: int) -> None:
        """Take a live prompt back: it is admitted again before new ones."""
        assert self.live[ordinal].state is not PromptState.IN_TRAINING, f"prompt {ordinal} is being trained"
        self._end(ordinal)
        insort(self._waiting, ordinal)

    def counts(self) -> dict[str, int]:
        """Prompts by where they are; "admitted" is the sum of all others."""
        by_state = {state.value: self._states[state] for state in PromptState}
        dropped = {f"dropped/{reason}": number for reason, number in sorted(self.num_dropped.items())}
        counts = {**by_state, "trained": self.num_trained, "waiting": len(self._waiting), **dropped}
        return {"admitted": self.next_ordinal, **counts}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. Live prompts are stored as "not ended": a resumed run admits them again, in order."""
        return {
            "watermark": self.watermark,
            "next_ordinal": self.next_ordinal,
            "steps": self.steps,
            "num_trained": self.num_trained,
            "num_dropped": dict(self.num_dropped),
            "trained": [[ordinal, step] for ordinal, step in sorted(self.trained.items())],
            "dropped": [[ordinal, reason] for ordinal, reason in sorted(self.dropped.items())],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> PromptLedger:
        """Continue from a saved state, with everything that was live waiting to be admitted again."""
        ledger = cls()
        ledger.watermark, ledger.next_ordinal = int(state["watermark"]), int(state["next_ordinal"])
        ledger.steps, ledger.num_trained = int(state["steps"]), int(state["num_trained"])
        ledger.num_dropped.update({str(reason): int(number) for reason, number in state["num_dropped"].items()})
        ledger.trained = {int(ordinal): int(step) for ordinal, step in state["trained"]}
        ledger.dropped = {int(ordinal): str(reason) for ordinal, reason in state["dropped"]}
        ended = ledger.trained.keys() | ledger.dropped.keys()
        ledger._waiting.extend(o for o in range(ledger.watermark, ledger.next_ordinal) if o not in ended)
        return ledger

    def _move(self, ordinal: int, old: PromptState, new: PromptState) -> LivePrompt:
        prompt = self.live[ordinal]
        assert prompt.state is old, f"prompt {ordinal} is {prompt.state.value}, expected {old.value}"
        prompt.state = new
        self._states[old] -= 1
        self._states[new] += 1
        return prompt

    def _end(self, ordinal: int) -> None:
        self._states[self.live.pop(ordinal).state] -= 1

    def _raise_watermark(self) -> None:
        while self.watermark in self.trained or self.watermark in self.dropped:
            self.trained.pop(self.watermark, None)
            self.dropped.pop(self.watermark, None)
            self.watermark += 1


class AdmissionPolicy:
    """Decisions of one run; holds no state besides its configuration."""

    def __init__(self, config: RolloutConfig) -> None:
        self._batch_size = config.batch_size
        self._bound = config.max_head_offpolicyness
        self._surplus = config.surplus_prompts
        self.max_live = (config.max_head_offpolicyness + 1) * config.batch_size
        """Prompts that the bound admits, without surplus."""
        self._max_in_flight = config.max_concurrent_prompts or self.max_live + self._surplus
        self._select = {"fifo": self._oldest, "deadline": self._feasible, "drop": self._first_finished}[config.consume]
        self._drops = config.consume == "drop"
        self._in_order = config.consume == "fifo"

    @property
    def has_surplus(self) -> bool:
        """Whether more prompts are started than batches need."""
        return self._surplus > 0

    @property
    def drops_in_order(self) -> bool:
        """Whether a prompt is only dropped once all that were admitted before it have ended."""
        return self.has_surplus and self._in_order

    @property
    def keeps_surplus_apart(self) -> bool:
        """Whether surplus prompts are only dropped or trained once they have taken the place of another one."""
        return self.has_surplus and not self._drops

    @property
    def requeues(self) -> bool:
        """Whether surplus prompts are admitted again; else they are dropped."""
        return not self._drops

    def room(self, ledger: PromptLedger, *, waiting: bool = False, limited: bool = True) -> int:
        """Return how many further prompts may be admitted now. waiting: the trainer waits for a batch. limited: by
        max_concurrent_prompts, too."""
        # With bound 0 it has nothing else to do; whether it asks before or after the last sample must not matter.
        idle = not ledger.count(PromptState.IN_TRAINING) and (waiting or not self._bound)
        most = self.max_live + (self._surplus if idle else 0)
        room = most - len(ledger.live)
        return max(0, min(room, self._max_in_flight - ledger.count(PromptState.IN_FLIGHT)) if limited else room)

    def surplus(self, ledger: PromptLedger) -> tuple[int, ...]:
        """Ordinals to cancel, ascending, now that a batch was taken."""
        left = [prompt for prompt in ledger.live.values() if prompt.state is not PromptState.IN_TRAINING]
        excess = len(left) - self._bound * self._batch_size
        if not self._surplus or excess <= 0:
            return ()
        if self._drops:
            left.sort(key=lambda prompt: (prompt.admitted_version, prompt.state is PromptState.FINISHED))
            left = left[:excess]
        return tuple(sorted(prompt.ordinal for prompt in left[-excess:]))

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
        admitted = list(islice(ledger.live.values(), self.max_live))  # what comes after them is surplus
        finished = [prompt for prompt in admitted if prompt.state is PromptState.FINISHED]
        if len(finished) < self._batch_size:
            return None
        finished.sort(key=lambda prompt: (prompt.admitted_version, prompt.finished_order))
        chosen = finished[: self._batch_size]
        left_by_deadline = Counter(prompt.admitted_version + self._bound for prompt in admitted)
        left_by_deadline.subtract(prompt.admitted_version + self._bound for prompt in chosen)
        deadlines = sorted(left_by_deadline)
        due = accumulate(left_by_deadline[deadline] for deadline in deadlines)
        fits = all(number <= self._batch_size * (d - version) for d, number in zip(deadlines, due, strict=True))
        return chosen if fits else None

    def _first_finished(self, ledger: PromptLedger, version: int) -> list[LivePrompt] | None:
        finished = [prompt for prompt in ledger.live.values() if prompt.state is PromptState.FINISHED]
        return sorted(finished, key=lambda prompt: prompt.finished_order)[: self._batch_size]
