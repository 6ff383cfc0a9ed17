"""The continuous batch: admits waiting sequences, runs one forward over old and new rows together, samples, retires.

Not thread-safe and not asynchronous: `areal.engine.embedded.engine` calls it under its gate. One `step` gives every
active row one token. New prompts ride in the same forward as the decoding rows; equal prompts are computed once, and
kept once (`areal.engine.embedded.prompts`) or copied where that cannot be. Active rows always fill the slots 0 .. n -
1, so decoding never gathers keys.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from areal.api import FaultError, FaultKind, StopReason
from areal.engine.checks import sampled_placeholder
from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.kernel_library import kernel_in_background
from areal.engine.embedded.native import NativeForward, make_rows
from areal.engine.embedded.native_layout import UnsupportedLayer, require_computable
from areal.engine.embedded.prompts import NO_GROUP, SharedPrompts
from areal.engine.embedded.sequence import RowTable, SamplingRows, Sequence, broken_logits, sample
from areal.engine.embedded.states import StateStore, StepBackend
from areal.models.blocks.routing import RouteRecorder, count_experts
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray
    from torch import Tensor

    from areal.engine.embedded.sequence import Sequence

_logger = getLogger(__name__)

# New prompt tokens per step: bounds the memory of one forward and how long running rows wait for newcomers.
_PREFILL_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """One forward: rows 0 .. decode - 1 go on; behind them leaders (one per distinct new prompt), then followers of
    leaders, then sequences that continue a kept prompt."""

    decode: int
    leaders: list[Sequence]
    groups: list[int | None]
    """For each leader, the slot of the shared prompt that it leaves its own in."""
    leader_of: list[int]
    """For each follower, the index of its leader."""
    joined_from: list[int]
    """Slots of rows whose shared prompt decoding rows have joined (one per entry), in front of the attached ones."""
    attached_from: list[int]
    """Slots from which the newest decoding rows (one per entry) copy their prompt."""
    continued: list[tuple[bytes, int]]
    """Key of each kept prompt that is continued, and a slot that has its keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptPrompt:
    """What a row that continues a prompt needs beside its keys and values: states cannot be cut back to its end."""

    states: list[Tensor]
    logits: Tensor
    """[1, vocab]."""


class DecodeBatch:
    """Slots, their cache, and the queue in front of them.

    model: an `areal.api.CausalModel`. guard: `torch.inference_mode` or `torch.no_grad`, entered around all computation.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int,
        max_length: int,
        device: torch.device,
        guard: Callable[[], AbstractContextManager[Any]],
        record_routes: bool = False,
        kernel: str = "torch",
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.active: list[Sequence] = []
        self.counters = dict.fromkeys(
            ("decode_steps", "generated_tokens", "prefill_tokens", "shared_tokens", "recomputed_tokens"), 0
        )
        self._model = model
        self._max_rows = max_rows
        self._device = device
        self._guard = guard
        self._rows = RowTable(max_rows)
        self._cache = KVCache(max_slots=max_rows, max_length=max_length)
        self._states = StateStore(max_slots=max_rows)
        self._prompts = SharedPrompts(max_slots=max_rows, max_length=max_length)
        # Indexers choose among all keys of a row, and on an accelerator nothing tells the sums by which parts join.
        self._shares = device.type == "cpu" and not any(
            getattr(module, "indexer", None) is not None for module in model.modules()
        )
        self._kept: dict[bytes, _KeptPrompt] = {}
        self._starts = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self._sampling: SamplingRows | None = None
        self._checks_text = False
        self._recorded_experts = count_experts(model.layers) if record_routes else 0
        self._awaits_kernel = kernel != "torch"
        """Whether it is open what computes tokens."""
        self._native: NativeForward | None = None
        if self._awaits_kernel:
            try:
                require_computable(model)
                kernel_in_background()
            except UnsupportedLayer as reason:
                self._awaits_kernel = False
                # As a text: the exception holds the model, and who keeps log records would keep it too.
                _logger.info("tokens are computed by torch: %s", str(reason))

    @property
    def is_ready(self) -> bool:
        """Whether a step would compute at once; not while a compiler is at work on the kernel."""
        return not self._awaits_kernel or kernel_in_background().done()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.active or self.waiting)

    def step(self, version: int) -> list[tuple[Sequence, StopReason | FaultError]]:
        """One token for every active row, newcomers included. Returns the sequences that ended, with the reason.

        version: that of the model's weights. An exception in the model ends all active sequences with a typed fault.
        """
        with self._guard():
            try:
                wave = self._admit()
                if not self.active:
                    return []
                return self._record(*self._compute(wave), version)
            # Anything the model raises (out of memory, a bug in a family) becomes a fault of the requests it hit.
            except Exception as error:
                _logger.exception("decode step failed with %d active sequences", len(self.active))
                return self._fail_all(error)

    def drain(self, version: int) -> list[tuple[Sequence, StopReason | FaultError]]:
        """Wait for steps that are still computed, of which there are none here; see `DeviceBatch.drain`."""
        return []

    def preempt(self, version: int) -> None:
        """Take over changed weights: all active sequences go back to the head of the queue, and have their cache
        recomputed on admission."""
        active = self.active
        for slot, sequence in enumerate(active):
            sequence.settle(*self._rows.outputs(slot), version)
        self.waiting.extendleft(reversed(active))
        self.active = []
        self._kept.clear()
        self._prompts.clear()
        self._sampling = None
        if self._native is not None:
            try:
                self._native.refresh()
            # The weights are already in place, so that the update must not fail.
            except Exception:
                _logger.exception("tokens are computed by torch from now on: the kernel did not take the new weights")
                self._native.close()
                self._native = None

    def remove(self, wanted: Callable[[Sequence], bool], version: int) -> list[Sequence]:
        """Take out all waiting and active sequences that are `wanted`, with their output settled."""
        removed: list[Sequence] = []
        kept: list[Sequence] = []
        # Counted, not drained: the event loop may append at the same time, and its additions stay behind what is kept.
        for _ in range(len(self.waiting)):
            sequence = self.waiting.popleft()
            (removed if wanted(sequence) else kept).append(sequence)
        self.waiting.extendleft(reversed(kept))
        slots = [slot for slot, sequence in enumerate(self.active) if wanted(sequence)]
        for slot in slots:
            self.active[slot].settle(*self._rows.outputs(slot), version)
            removed.append(self.active[slot])
        if slots:
            with self._guard():
                self._compact(np.array(slots))
        return removed

    def free(self) -> None:
        """Let go of model and cache, for good. No sequence may be active."""
        if self._native is not None:
            self._native.close()
        self._forget()
        self._model = self._native = None

    # ---- admission

    def _admit(self) -> _Wave:
        """Move waiting sequences into free slots, first come first served, as slots and the token budget allow."""
        joined: list[tuple[Sequence, int]] = []
        attached: list[Sequence] = []
        attached_from: list[int] = []
        continued: list[tuple[Sequence, int]] = []
        groups: dict[bytes, list[Sequence]] = {}
        room, budget = self._max_rows - len(self.active), _PREFILL_TOKENS
        resident = {}
        if self.waiting and room:
            resident = {sequence.key: slot for slot, sequence in enumerate(self.active)}
        while self.waiting and room > 0:
            sequence = self.waiting[0]
            if not sequence.future.done():
                if sequence.key in self._kept and sequence.key in resident:
                    continued.append((sequence, resident[sequence.key]))
                elif self._states.is_empty and len(sequence.context) > 1 and sequence.key in resident:
                    source = resident[sequence.key]
                    if self._rows.table["group"][source] >= 0:
                        joined.append((sequence, source))
                    else:
                        attached.append(sequence)
                        attached_from.append(source)
                elif sequence.key in groups:
                    groups[sequence.key].append(sequence)
                elif not groups or len(sequence.context) <= budget:
                    groups[sequence.key] = [sequence]
                    budget -= len(sequence.context)
                else:
                    break
                room -= 1
            self.waiting.popleft()
        # All but the last prompt token is shared or copied; the last one is decoded, which gives the logits.
        for sequence, source in joined:
            self._enter(sequence, length=len(sequence.context) - 1, group=int(self._rows.table["group"][source]))
        for sequence in attached:
            self._enter(sequence, length=len(sequence.context) - 1)
        self.counters["shared_tokens"] += sum(len(each.context) - 1 for each in (*attached, *(s for s, _ in joined)))
        return self._place(groups, [source for _, source in joined], attached_from, continued)

    def _place(
        self,
        groups: dict[bytes, list[Sequence]],
        joined_from: list[int],
        attached_from: list[int],
        continued: list[tuple[Sequence, int]],
    ) -> _Wave:
        decode = len(self.active)
        # Similar lengths side by side: fresh sequences are padded per chunk.
        ordered = sorted(groups.values(), key=lambda members: len(members[0].context))
        leaders = [members[0] for members in ordered]
        followers = [(index, member) for index, members in enumerate(ordered) for member in members[1:]]
        opened = [self._open(members[0]) if len(members) > 1 else None for members in ordered]
        for leader, group in zip(leaders, opened, strict=True):
            self._enter(leader, length=len(leader.context), group=group)
        for index, member in followers:
            self._enter(member, length=len(member.context), group=opened[index])
        for member, source in continued:
            slot = int(self._rows.table["group"][source])
            self._enter(member, length=len(member.context), group=None if slot == NO_GROUP else slot)
        for leader in leaders:
            name = "recomputed_tokens" if leader.tokens else "prefill_tokens"
            self.counters[name] += len(leader.context)
        sharing = (*(member for _, member in followers), *(member for member, _ in continued))
        self.counters["shared_tokens"] += sum(len(member.context) for member in sharing)
        return _Wave(
            decode=decode,
            leaders=leaders,
            groups=opened,
            leader_of=[index for index, _ in followers],
            joined_from=joined_from,
            attached_from=attached_from,
            continued=[(member.key, slot) for member, slot in continued],
        )

    def _open(self, leader: Sequence) -> int | None:
        """Slot for a prompt that several sequences enter with; None where they keep it themselves."""
        return self._prompts.open(len(leader.context) - 1) if self._shares and len(leader.context) > 1 else None

    def _enter(self, sequence: Sequence, *, length: int, group: int | None = None) -> None:
        if group is None:
            self._rows.place(len(self.active), sequence, length=length)
        else:
            before = len(sequence.context) - 1
            self._rows.place(len(self.active), sequence, length=length, group=group, before=before)
        self.active.append(sequence)
        self._sampling = None
        self._checks_text = self._checks_text or bool(sequence.request.gconfig.stop)

    # ---- computation

    def _compute(self, wave: _Wave) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Forward and sampling: the next token and its log-probability for every active row."""
        rows = len(self.active)
        logits = self._logits(wave)
        forbidden = self._rows.forbidden(rows, logits.shape[-1])
        if forbidden is not None:
            logits[self._upload(forbidden[0]), self._upload(forbidden[1])] = float("-inf")
        if self._sampling is None:
            self._sampling = self._rows.sampling(rows, self._device)
        uniform = self._upload(self._rows.uniform(rows))
        tokens, logprobs = sample(logits, self._sampling, uniform)
        # The step's only transfer to the host; float64 holds both token ids and float32 values exactly.
        both = torch.stack((tokens.double(), logprobs.double())).cpu().numpy()
        return both[0].astype(np.int64), both[1]

    def _logits(self, wave: _Wave) -> Tensor:
        """Next-token logits [active rows, vocab]."""
        decode, fresh = wave.decode, [len(leader.context) for leader in wave.leaders]
        own = self._own_lengths(decode)
        longest = int(own.max()) + 1 if decode else 1
        # Of a group, a row keeps the last prompt token.
        kept = max((1 if group is not None else n for n, group in zip(fresh, wave.groups, strict=True)), default=1)
        self._cache.reserve(len(self.active), max(longest, kept))
        self._prompts.reserve()
        self._states.reserve(len(self.active))
        if wave.attached_from:
            targets = torch.arange(decode - len(wave.attached_from), decode, device=self._device)
            self._cache.copy_rows(self._upload(np.array(wave.attached_from)), targets, longest)
        native = self._find_native()
        if native is None:
            logits = self._logits_by_modules(wave, longest, is_uniform=bool(decode and int(own.min()) + 1 == longest))
        else:
            rows = make_rows(self._rows.table[:decode], [leader.context for leader in wave.leaders], wave.groups)
            logits = native.logits(rows, decode + len(fresh), self._cache, self._prompts.cache)
        self._rows.table["length"][:decode] += 1
        self._keep_prompts(wave, logits)
        if wave.leader_of:
            first = decode + len(fresh)
            sources = self._upload(np.array(wave.leader_of) + decode)
            self._copy(sources, torch.arange(first, first + len(wave.leader_of), device=self._device), kept)
            logits = torch.cat((logits, logits.index_select(0, sources)))
        return self._continue(wave, logits) if wave.continued else logits

    def _find_native(self) -> NativeForward | None:
        """Return the kernel where it computes this model; settled once, so that a run takes one way from its start."""
        if self._awaits_kernel:
            self._awaits_kernel = False
            try:
                library = kernel_in_background().result()
                if isinstance(library, str):
                    raise UnsupportedLayer(library)
                self._native = NativeForward(library, self._model, max_length=self._cache.max_length)
                _logger.info("tokens are computed by the compiled kernel")
            except UnsupportedLayer as reason:
                # As a text: the exception holds the model, and who keeps log records would keep it too.
                _logger.info("tokens are computed by torch: %s", str(reason))
            # Torch computes everything, so that no request has to fail for what the kernel cannot.
            except Exception:
                _logger.exception("tokens are computed by torch: the compiled kernel failed")
        return self._native

    def _logits_by_modules(self, wave: _Wave, longest: int, *, is_uniform: bool) -> Tensor:
        """Logits [decode rows and leaders, vocab] by the model's own modules; see `StepAttention`."""
        table, decode = self._rows.table, wave.decode
        fresh = [len(leader.context) for leader in wave.leaders]
        positions = self._upload(table["length"][:decode].copy())
        backend = StepBackend(
            self._cache,
            self._states,
            lengths=positions,
            longest=longest,
            uniform=is_uniform,
            fresh_lengths=fresh,
            fresh_slots=list(range(decode, decode + len(fresh))),
            shared=self._prompts.grouped(table["group"][:decode], table["before"][:decode]),
            prompts=self._prompts.cache,
            fresh_groups=wave.groups,
        )
        tokens = self._upload(table["token"][:decode].copy())
        starts = self._starts[: decode + 1]
        if fresh:
            ends = decode + np.cumsum(fresh)
            starts = torch.cat((starts, self._upload(ends.astype(np.int32))))
            tokens = torch.cat((tokens, self._upload(np.concatenate([leader.context for leader in wave.leaders]))))
            positions = torch.cat((positions, self._upload(np.concatenate([np.arange(n) for n in fresh]))))
        recorder = RouteRecorder() if self._recorded_experts else None
        options = {} if recorder is None else {"routes": recorder}
        hidden = self._model.hidden(tokens, positions, starts, max(fresh, default=1), attention=backend, **options)
        if recorder is not None:
            self._record_routes(wave, recorder.routes(self._recorded_experts).cpu())
        if fresh:
            hidden = hidden.index_select(0, self._upload(np.concatenate((np.arange(decode), ends - 1))))
        logits: Tensor = self._model.project(hidden)
        return logits

    def _record_routes(self, wave: _Wave, routes: Tensor) -> None:
        """Give every active sequence the routes of its new tokens, and of those that it shares; routes: of the tokens
        of the forward, [T, M, K]."""
        sources = [*wave.joined_from, *wave.attached_from]
        for slot, source in enumerate(sources, wave.decode - len(sources)):
            sequence = self.active[slot]
            sequence.add_routes(torch.cat(self.active[source].routes)[: len(sequence.context) - 1])
        for slot, sequence in enumerate(self.active[: wave.decode]):
            sequence.routes.append(routes[slot : slot + 1])
            sequence.num_routed += 1
        lengths = [len(leader.context) for leader in wave.leaders]
        fresh = routes[wave.decode :].split(lengths) if lengths else ()
        newcomers = iter(self.active[wave.decode :])
        for place in (*range(len(lengths)), *wave.leader_of):
            next(newcomers).add_routes(fresh[place])
        for sequence, (_, source) in zip(newcomers, wave.continued, strict=True):
            sequence.add_routes(torch.cat(self.active[source].routes)[: len(sequence.context)])

    def _keep_prompts(self, wave: _Wave, logits: Tensor) -> None:
        """Keep the states at the end of new prompts that waiting sequences have as well."""
        wanted = set() if self._states.is_empty else {sequence.key for sequence in self.waiting}
        continued = {key for key, _ in wave.continued}
        self._kept = {key: kept for key, kept in self._kept.items() if key in wanted or key in continued}
        for slot, leader in enumerate(wave.leaders, wave.decode):
            if leader.key in wanted:
                states = self._states.rows_of(torch.tensor([slot], device=self._device))
                self._kept[leader.key] = _KeptPrompt(states=states, logits=logits[slot : slot + 1].clone())

    def _continue(self, wave: _Wave, logits: Tensor) -> Tensor:
        """Give sequences what was kept at the end of their prompt, which rows before them have, and its logits."""
        first = len(self.active) - len(wave.continued)
        parts = [logits]
        for slot, (key, source) in enumerate(wave.continued, first):
            row = self._rows.table[slot]
            kept, length = self._kept[key], int(row["length"] - row["before"])
            target = torch.tensor([slot], device=self._device)
            self._cache.copy_rows(torch.tensor([source], device=self._device), target, length)
            self._states.write(target, kept.states)
            parts.append(kept.logits)
        return torch.cat(parts)

    def _own_lengths(self, rows: int) -> NDArray[np.int64]:
        """Entries that each of the first rows has in its own slot."""
        own: NDArray[np.int64] = self._rows.table["length"][:rows] - self._rows.table["before"][:rows]
        return own

    def _copy(self, sources: Tensor, targets: Tensor, longest: int) -> None:
        """Copy what slots hold: the first `longest` keys and values, and the states after the last token."""
        self._cache.copy_rows(sources, targets, longest)
        self._states.copy_rows(sources, targets)

    def _forget(self) -> None:
        """Drop everything that forwards have left."""
        self._cache.clear()
        self._prompts.clear()
        self._states.clear()
        self._kept.clear()

    def _upload(self, values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

    # ---- results

    def _record(
        self, tokens: NDArray[np.int64], logprobs: NDArray[np.float64], version: int
    ) -> list[tuple[Sequence, StopReason | FaultError]]:
        rows = len(self.active)
        ended = self._rows.record(rows, tokens, logprobs)
        broken = ~np.isfinite(logprobs)
        refused = self.active[0].limits.refused
        # Never fed to the model: what it stands for is not there.
        foreign = np.isin(tokens, list(refused)) if refused else np.zeros(rows, dtype=bool)
        self.counters["decode_steps"] += 1
        self.counters["generated_tokens"] += rows - int(broken.sum())
        texted = self._text_stops() if self._checks_text else set()
        ended |= broken | foreign
        ended[list(texted)] = True
        if not ended.any():
            return []
        slots = np.flatnonzero(ended)
        stopped = self._rows.stopped(rows)
        outcomes: list[tuple[Sequence, StopReason | FaultError]] = []
        for slot in slots.tolist():
            sequence = self.active[slot]
            sequence.settle(*self._rows.outputs(slot, drop_last=bool(broken[slot])), version)
            if broken[slot]:
                outcomes.append((sequence, broken_logits(sequence)))
            elif foreign[slot]:
                outcomes.append((sequence, sampled_placeholder(sequence.request, int(tokens[slot]), refused)))
            else:
                complete = stopped[slot] or slot in texted
                outcomes.append((sequence, StopReason.STOP if complete else StopReason.LENGTH))
        if broken.any():
            slots_of_broken = self._upload(np.flatnonzero(broken))
            self._cache.clear_rows(slots_of_broken)
            self._states.clear_rows(slots_of_broken)
        self._compact(slots)
        return outcomes

    def _text_stops(self) -> set[int]:
        return {
            slot
            for slot, sequence in enumerate(self.active)
            if sequence.request.gconfig.stop and sequence.completes_stop_string(self._rows.outputs(slot)[0])
        }

    def _compact(self, slots: NDArray[np.int64]) -> None:
        """Free the given slots (ascending): the last active rows move into the holes."""
        total = len(self.active)
        remaining = total - len(slots)
        alive = np.ones(total, dtype=bool)
        alive[slots] = False
        targets = slots[slots < remaining]
        sources = np.flatnonzero(alive[remaining:]) + remaining
        if len(targets):
            longest = int(self._own_lengths(total)[sources].max())
            self._copy(self._upload(sources), self._upload(targets), longest)
            self._rows.move(sources, targets)
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
                self.active[target] = self.active[source]
        del self.active[remaining:]
        self._prompts.close_unused(self._rows.table["group"][:remaining])
        self._sampling = None
        self._checks_text = any(sequence.request.gconfig.stop for sequence in self.active)

    def _fail_all(self, error: Exception) -> list[tuple[Sequence, StopReason | FaultError]]:
        # What the failed forward left in the cache is unknown, so none of it is kept.
        failed, self.active = self.active, []
        self._forget()
        self._sampling = None
        message = f"the decode step raised {type(error).__name__}: {error}"
        return [(sequence, FaultError(FaultKind.GENERATION_FAILED, message)) for sequence in failed]
