"""The continuous batch of an accelerator: the host queues steps, and learns some steps later what they gave.

`areal.engine.embedded.batch.DecodeBatch` decides after every token who has ended, which makes an accelerator wait for
the host, and the host for it, once per token. Here one step is one function of tensors that stay on the device
(`DeviceRows`, the cache), which samples, and marks the rows that have ended; these are computed on, for nothing, until
the host has read that. It reads `STEPS_PER_READ` steps at a time, while the next one runs.

A sequence enters with all but the last token of its context computed; that one is decoded, as all later ones are. So
the tokens of a request are those of a step with one more row, and a prompt needs no projection to the vocabulary.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from areal.api import FaultError, FaultKind, StopReason
from areal.engine.checks import sampled_placeholder
from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.device.graphs import StepGraphs
from areal.engine.embedded.device.results import STEPS_PER_READ, StepResults
from areal.engine.embedded.device.rows import DeviceRows, StepShape
from areal.engine.embedded.sequence import broken_logits
from areal.engine.embedded.states import StateStore, StepBackend
from areal.utils.logging import getLogger
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from areal.engine.embedded.device.graphs import GraphMode
    from areal.engine.embedded.sequence import Sequence

_logger = getLogger(__name__)

_PREFILL_TOKENS: Final = 8192
"""New prompt tokens per step: bounds the memory of one forward and how long running rows wait for newcomers."""
_STEPS_AHEAD: Final = 2
"""Queued behind a copy of results, so that the device has work while the host takes them over."""
_FEWEST_ROWS: Final = 8
_SHORTEST: Final = 128
_CACHE_SHARE: Final = 0.5
"""Of the free memory, that the whole cache may take at once; beyond, it grows with the sequences."""

Outcome = tuple["Sequence", StopReason | FaultError]


@dataclass(slots=True, eq=False)
class _Running:
    """A sequence in a slot, as far as the host knows."""

    sequence: Sequence
    first_step: int
    """Number of the step that gives its first token."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    is_over: bool = False
    """What steps still give for it is not looked at."""

    @property
    def last_step(self) -> int:
        """Number of the step after which its budget is used up."""
        return self.first_step + self.sequence.limits.budget(self.sequence.request) - len(self.sequence.tokens)


class DeviceBatch:
    """Slots, their cache, and the queue in front of them; see `DecodeBatch`, in whose place it is.

    model: an `areal.api.CausalModel`. It computes without gradients, but never in inference mode: what is made there
    cannot be changed outside of it, and captures keep what they made.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int,
        max_length: int,
        device: torch.device,
        graphs: GraphMode = "auto",
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.counters = dict.fromkeys(
            (
                "decode_steps",
                "replayed_steps",
                "generated_tokens",
                "prefill_tokens",
                "shared_tokens",
                "recomputed_tokens",
            ),
            0,
        )
        self._model, self._device = model, device
        # Of its own, and first in line: what trains on the same device queues work for a long time ahead.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._graphs = StepGraphs(graphs, self._stream)
        self._follow()
        self._max_rows = max_rows
        self._cache = KVCache(max_slots=max_rows, max_length=max_length)
        self._states = StateStore(max_slots=max_rows)
        self._slots: list[_Running] = []
        self._steps: deque[list[_Running]] = deque()
        """Who was in which slot, of each step that has not been read."""
        self._number = 0
        """Steps begun."""
        self._rows: DeviceRows | None = None
        self._results: StepResults | None = None
        self._starts: Tensor | None = None
        self._goes_on = False
        """Whether the last step found a row whose budget is not used up."""
        self._is_sized = False

    @property
    def is_ready(self) -> bool:
        """Whether a step would do something at once; not while it is waited for results with enough queued."""
        results = self._results
        if results is None or not results.is_fetched:
            return True
        try:
            if results.is_complete:
                return True
        except RuntimeError:  # of a step that was queued before; `step` meets it again, and ends the requests
            return True
        return self._goes_on and results.written < _STEPS_AHEAD

    @property
    def active(self) -> list[Sequence]:
        """Sequences in slots; some of them may have ended on the device."""
        return [running.sequence for running in self._slots]

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._slots or self.waiting)

    def step(self, version: int) -> list[Outcome]:
        """Queue one token for every row, newcomers included. Returns the sequences that have been found to have ended.

        version: that of the model's weights. An exception in the model ends all active sequences with a typed fault.
        """
        outcomes: list[Outcome] = []
        with self._computing(), self._failing(outcomes):
            results = self._results
            if results is not None and results.is_fetched and results.is_complete:
                outcomes += self._read(version)
            self._admit()
            self._advance()
        return outcomes

    def drain(self, version: int) -> list[Outcome]:
        """Wait for all steps that were queued. Returns the sequences that have ended; `version`, and exceptions, as in
        `step`."""
        outcomes: list[Outcome] = []
        results = self._results
        if results is not None:
            with self._computing(), self._failing(outcomes):
                if results.is_fetched:
                    outcomes += self._read(version)
                if results.written:
                    results.fetch()
                    outcomes += self._read(version)
        return outcomes

    def preempt(self, version: int) -> None:
        """Take over changed weights, after `drain`: all active sequences go back to the head of the queue, and have
        their cache recomputed on admission."""
        assert not self._steps, "steps of the old weights are read first"
        for running in self._slots:
            running.sequence.settle(running.tokens, running.logprobs, version)
        self.waiting.extendleft(running.sequence for running in reversed(self._slots))
        self._follow()
        with self._computing():
            self._keep([])

    def remove(self, wanted: Callable[[Sequence], bool], version: int) -> list[Sequence]:
        """Take out all waiting and active sequences that are `wanted`, after `drain`, with their output settled."""
        assert not self._steps, "what is on its way is read first"
        removed: list[Sequence] = []
        kept: list[Sequence] = []
        # Counted, not drained: the event loop may append at the same time, and its additions stay behind what is kept.
        for _ in range(len(self.waiting)):
            sequence = self.waiting.popleft()
            (removed if wanted(sequence) else kept).append(sequence)
        self.waiting.extendleft(reversed(kept))
        staying = [slot for slot, running in enumerate(self._slots) if not wanted(running.sequence)]
        if len(staying) < len(self._slots):
            for running in self._slots:
                if wanted(running.sequence):
                    running.sequence.settle(running.tokens, running.logprobs, version)
                    removed.append(running.sequence)
            with self._computing():
                self._keep(staying)
        return removed

    def free(self) -> None:
        """Let go of model and cache, for good. No sequence may be active."""
        self._forget()
        self._model = self._rows = self._results = None

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Queue what is computed on the batch's own stream, and without gradients."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext(), torch.no_grad():
            yield

    @contextmanager
    def _failing(self, outcomes: list[Outcome]) -> Iterator[None]:
        """Turn an exception into a fault of all active sequences, behind the `outcomes` of those that had left before.

        Whatever the model raises (out of memory, a bug in a family), and errors of steps that were queued earlier.
        """
        try:
            yield
        except Exception as error:
            _logger.exception("decode step failed with %d active sequences", len(self._slots))
            outcomes += self._fail_all(error)

    def _follow(self) -> None:
        """Let the stream wait for what the caller has queued, such as new weights."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    # ---- admission

    def _admit(self) -> None:
        """Give slots to the sequences at the head of the queue: equal contexts are computed once, and copied."""
        if not self.waiting or len(self._slots) == self._max_rows:
            return
        resident = {running.sequence.key: slot for slot, running in enumerate(self._slots)}
        groups: dict[bytes, list[Sequence]] = {}
        joining: list[tuple[Sequence, int]] = []
        budget, room = _PREFILL_TOKENS, self._max_rows - len(self._slots)
        while self.waiting and room:
            sequence = self.waiting[0]
            if not sequence.future.done():
                # A state that has gone on cannot be taken back to the end of the prompt.
                if sequence.key in resident and self._states.is_empty:
                    joining.append((sequence, resident[sequence.key]))
                elif sequence.key in groups:
                    groups[sequence.key].append(sequence)
                elif not groups or len(sequence.context) <= budget:
                    groups[sequence.key] = [sequence]
                    budget -= len(sequence.context)
                else:
                    break
                room -= 1
            self.waiting.popleft()
        if not groups and not joining:
            return
        ordered = sorted(groups.values(), key=lambda members: len(members[0].context))
        first = len(self._slots)
        leaders = [members[0] for members in ordered]
        pairs = [(member, first + number) for number, members in enumerate(ordered) for member in members[1:]]
        self._enter(leaders, pairs + joining)

    def _enter(self, leaders: list[Sequence], copies: list[tuple[Sequence, int]]) -> None:
        """Fill the next slots: with sequences that are computed, then with copies of the slots given with each."""
        first = len(self._slots)
        newcomers = [*leaders, *(sequence for sequence, _ in copies)]
        # A list of its own: steps that are not read yet hold the old one.
        self._slots = [*self._slots, *(_Running(sequence, self._number) for sequence in newcomers)]
        rows = self._find_rows()
        self._reserve()
        # Of a context of one token nothing is computed, and slots are computed on when their sequence has ended.
        entered = self._upload(np.arange(first, len(self._slots)))
        self._states.clear_rows(entered)
        self._prefill([(slot, each) for slot, each in enumerate(leaders, first) if len(each.context) > 1])
        if copies:
            sources = self._upload(np.array([source for _, source in copies]))
            targets = self._upload(np.arange(first + len(leaders), len(self._slots)))
            self._cache.copy_rows(sources, targets, max(len(sequence.context) for sequence, _ in copies) - 1)
            self._states.copy_rows(sources, targets)
        if rows.enter(range(first, len(self._slots)), newcomers):
            self._graphs.clear()
        for leader in leaders:
            name = "recomputed_tokens" if leader.tokens else "prefill_tokens"
            self.counters[name] += len(leader.context)
        self.counters["shared_tokens"] += sum(len(sequence.context) - 1 for sequence, _ in copies)

    def _prefill(self, entering: list[tuple[int, Sequence]]) -> None:
        """Compute all but the last token of the contexts of sequences that enter the given slots."""
        if not entering:
            return
        contexts = [sequence.context[:-1] for _, sequence in entering]
        lengths = [len(context) for context in contexts]
        places = np.concatenate([np.arange(length) for length in lengths])
        tokens, positions = self._upload(np.stack((np.concatenate(contexts), places))).unbind()
        starts = self._upload(np.cumsum([0, *lengths]).astype(np.int32))
        backend = StepBackend(
            self._cache,
            self._states,
            lengths=tokens[:0],
            longest=1,
            uniform=True,
            fresh_lengths=lengths,
            fresh_slots=[slot for slot, _ in entering],
        )
        self._model.hidden(tokens, positions, starts, max(lengths), attention=backend)

    def _reserve(self) -> None:
        """Make room in the cache for what the rows have when their budgets are used up."""
        before = self._cache.slots, self._cache.capacity
        longest = max(len(each.sequence.context) - 1 + each.last_step - each.first_step for each in self._slots)
        self._cache.reserve(self._max_rows, min(_bucket(longest + 1, _SHORTEST), self._cache.max_length))
        self._states.reserve(self._max_rows)
        if before != (self._cache.slots, self._cache.capacity):
            self._graphs.clear()

    def _size(self) -> None:
        """Reserve the whole cache, now that a forward has shown what an entry takes, if it fits: growing copies it, and
        makes all captures worthless."""
        self._is_sized = True
        wanted = self._cache.entry_bytes * self._max_rows * self._cache.max_length
        if self._device.type == "cuda" and wanted > _CACHE_SHARE * torch.cuda.mem_get_info(self._device)[0]:
            _logger.info(
                "a cache of %d rows of %d tokens takes %.1f GB, more than half of what is free, so it grows as needed",
                self._max_rows, self._cache.max_length, wanted / 1e9,
            )  # fmt: skip
            return
        self._cache.reserve(self._max_rows, self._cache.max_length)
        self._graphs.clear()

    # ---- steps

    def _advance(self) -> None:
        """Queue a step where a row has a budget left, and the copy of the results behind the last of some."""
        self._goes_on = any(running.last_step > self._number for running in self._slots)
        results = self._results
        if results is None:  # there has not been any sequence
            return
        if self._goes_on and results.written < STEPS_PER_READ:
            self._launch()
        is_due = results.written == STEPS_PER_READ or (results.written and not self._goes_on)
        if is_due and not results.is_fetched:
            results.fetch()

    def _launch(self) -> None:
        rows, results = self._find_rows(), self._results
        assert results is not None, "made together with the rows"
        longest = 1 + max(map(self._entries, self._slots))
        configs = [each.sequence.request.gconfig for each in self._slots]
        shape = StepShape(
            rows=min(_bucket(len(self._slots), _FEWEST_ROWS), self._max_rows),
            longest=min(_bucket(longest, _SHORTEST), self._cache.capacity),
            filters=any(not each.greedy and (each.top_k > 0 or each.top_p < 1) for each in configs),
            samples=not all(each.greedy for each in configs),
        )
        self.counters["replayed_steps"] += self._graphs.run(shape, partial(self._compute, rows, results, shape))
        self._number += 1
        results.written += 1
        self._steps.append(self._slots)
        self.counters["decode_steps"] += 1
        if not self._is_sized:
            self._size()

    def _compute(self, rows: DeviceRows, results: StepResults, shape: StepShape) -> None:
        """One step, from tensors on the device to tensors on the device: what is captured."""
        tokens, lengths = rows.inputs(shape.rows)
        assert self._starts is not None, "made together with the rows"
        backend = StepBackend(
            self._cache,
            self._states,
            lengths=lengths,
            longest=shape.longest,
            uniform=False,
            fresh_lengths=[],
            fresh_slots=[],
        )
        hidden = self._model.hidden(tokens, lengths, self._starts[: shape.rows + 1], 1, attention=backend)
        results.write(rows.advance(self._model.project(hidden), shape))

    def _find_rows(self) -> DeviceRows:
        """Return the rows; made with the first sequence, which knows the limits of all."""
        if self._rows is None:
            refused = sorted(self._slots[0].sequence.limits.refused)
            self._rows = DeviceRows(self._max_rows, self._device, refused)
            self._results = StepResults(self._max_rows, self._device)
            self._starts = torch.arange(self._max_rows + 1, dtype=torch.int32, device=self._device)
        return self._rows

    def _upload(self, values: NDArray[Any]) -> Tensor:
        return upload(torch.from_numpy(values), self._device)

    # ---- results

    def _read(self, version: int) -> list[Outcome]:
        """Take over what was fetched. Sequences that have ended leave their slots."""
        assert self._results is not None, "there is something to read"
        outcomes: list[Outcome] = []
        for tokens, bits, ended in self._results.read():
            columns = tokens.tolist(), bits.view(np.float32).tolist(), ended.tolist()
            # Slots behind those of sequences have nothing to say.
            for running, token, logprob, is_last in zip(self._steps.popleft(), *columns, strict=False):
                if not running.is_over and token >= 0:
                    outcome = self._take(running, token, logprob, is_last=bool(is_last))
                    if outcome is not None:
                        running.is_over = True
                        running.sequence.settle(running.tokens, running.logprobs, version)
                        outcomes.append((running.sequence, outcome))
        if outcomes:
            self._keep([slot for slot, running in enumerate(self._slots) if not running.is_over])
        return outcomes

    def _take(self, running: _Running, token: int, logprob: float, *, is_last: bool) -> StopReason | FaultError | None:
        """Append one token; return why it was the last one, if it was."""
        sequence = running.sequence
        if not math.isfinite(logprob):
            return broken_logits(sequence)
        self.counters["generated_tokens"] += 1
        running.tokens.append(token)
        running.logprobs.append(logprob)
        refused = sequence.limits.refused
        if token in refused:
            return sampled_placeholder(sequence.request, token, refused)
        if sequence.request.gconfig.stop and sequence.completes_stop_string(running.tokens):
            return StopReason.STOP
        if not is_last:
            return None
        return StopReason.STOP if token in sequence.limits.stop_ids(sequence.request) else StopReason.LENGTH

    def _entries(self, running: _Running) -> int:
        """Return how much a row has in the cache, at most: one more with every step since it entered."""
        return len(running.sequence.context) - 1 + self._number - running.first_step

    def _keep(self, slots: list[int]) -> None:
        """Free all other slots (`slots` ascending): the last rows move into the holes.

        What is left in the cache is cleared, since it may not be finite, which masks do not hide: that of the rows that
        leave, and of those that move, which may have broken in steps that are not read yet. Only the first entry of a
        free slot is written after that, and whoever enters the slot writes it, too.
        """
        total, remaining = len(self._slots), len(slots)
        leaving = sorted(set(range(total)) - set(slots))
        targets = [slot for slot in leaving if slot < remaining]
        sources = [slot for slot in slots if slot >= remaining]
        order = np.arange(remaining)
        order[targets] = sources
        if leaving and self._rows is not None:
            self._cache.clear_slots(leaving)
            if targets:
                there, here = self._upload(np.array(sources)), self._upload(np.array(targets))
                self._cache.copy_rows(there, here, max(self._entries(self._slots[slot]) for slot in sources))
                self._states.copy_rows(there, here)
                self._cache.clear_slots(sources)
            self._rows.keep(order, total)
        self._slots = [self._slots[slot] for slot in order.tolist()]

    def _forget(self) -> None:
        """Drop everything that forwards have left."""
        self._graphs.clear()
        self._cache.clear()
        self._states.clear()
        self._steps.clear()
        self._rows = self._results = self._starts = None
        self._is_sized = False

    def _fail_all(self, error: Exception) -> list[Outcome]:
        # What the failed forward left in the cache is unknown, so none of it is kept.
        failed, self._slots = self._slots, []
        self._forget()
        message = f"the decode step raised {type(error).__name__}: {error}"
        return [(running.sequence, FaultError(FaultKind.GENERATION_FAILED, message)) for running in failed]


def _bucket(count: int, smallest: int) -> int:
    """Return the smallest power of two that is at least `count` and `smallest`, which is one."""
    return max(smallest, 1 << (count - 1).bit_length())
