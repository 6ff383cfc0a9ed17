"""Batched decoding of a model of `transformers` with its own cache: what `EmbeddedEngine` runs for such a model.

Sequences that are admitted together form a wave: a rectangle with one cache, which all architectures of `transformers`
have, whatever it holds. A wave prefills each distinct prompt once and copies what it left to the other samples. Rows of
a wave have the same length, or are padded on the left where a probe finds that this changes nothing and the cache holds
plain keys and values. Images are distinguished by digest; the positions that they shift are kept here, row by row, and
never inside the model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from areal.api import FaultError, FaultKind, ModelError, PackedImage, StopReason
from areal.engine.checks import sampled_placeholder
from areal.engine.embedded.sequence import RowTable, Sequence, broken_logits, sample
from areal.engine.hf.pixels import axis_positions, text_cells
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor

_logger = getLogger(__name__)

_PREFILL_TOKENS: Final = 8192
"""Of one wave, padding included; a longer prompt is alone."""
_PROBE_TOKENS: Final = 7
_PADDED_BY: Final = 3
_CACHE_TOLERANCE: Final = 1e-4
_PADDING_TOLERANCE: Final = 1e-5


@dataclass(slots=True, eq=False)
class _DecodedRows:
    """Rows that are decoded together."""

    sequences: list[Sequence]
    rows: RowTable
    cache: Any
    mask: Tensor | None
    """int64 [B, cached columns], 0 on padding; None without any."""
    columns: Tensor
    """int64 [B], column of the next token in its own sequence."""
    shifts: Tensor
    """int64 [B], by how much its position differs from its column."""
    logits: Tensor | None
    """[B, vocab] of the next token, where a prefill has just given them."""

    def keep(self, slots: list[int]) -> None:
        """Go on with some of the rows."""
        chosen = torch.tensor(slots, device=self.columns.device)
        self.cache.reorder_cache(chosen)
        self.columns, self.shifts = self.columns[chosen], self.shifts[chosen]
        self.mask = None if self.mask is None else self.mask[chosen]
        self.rows.move(np.array(slots), np.arange(len(slots)))
        self.sequences = [self.sequences[slot] for slot in slots]


class RectangleBatch:
    """Waves, and the queue in front of them; see `areal.engine.embedded.batch.DecodeBatch`, which it takes the place
    of.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int,
        max_length: int,
        device: torch.device,
        guard: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """model: a `HuggingFaceModel`. Raises ModelError when its cache does not give what it computes without."""
        del max_length
        self.waiting: deque[Sequence] = deque()
        self.counters = dict.fromkeys(
            ("decode_steps", "generated_tokens", "prefill_tokens", "shared_tokens", "recomputed_tokens"), 0
        )
        self._model = model
        self._max_rows = max_rows
        self._device = device
        self._guard = guard
        self._waves: list[_DecodedRows] = []
        self._pads = _probe(model, device)

    @property
    def active(self) -> list[Sequence]:
        """Sequences that are being decoded."""
        return [sequence for wave in self._waves for sequence in wave.sequences]

    @property
    def is_ready(self) -> bool:
        """Whether a step would compute at once."""
        return True

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waves or self.waiting)

    def step(self, version: int) -> list[tuple[Sequence, StopReason | FaultError]]:
        """One token for every active row, newcomers included. Returns the sequences that ended, with the reason.

        version: that of the model's weights. An exception in the model ends the sequences of a wave with a typed fault.
        """
        outcomes: list[tuple[Sequence, StopReason | FaultError]] = []
        with self._guard():
            for group in self._admitted():
                try:
                    self._waves.append(self._prefill(group))
                # Anything the model raises becomes a fault of the requests it hit.
                except Exception as error:  # noqa: BLE001 - logged there
                    outcomes += _failed([sequence for members in group for sequence in members], error)
            for wave in list(self._waves):
                try:
                    outcomes += self._advance(wave, version)
                except Exception as error:  # noqa: BLE001 - logged there
                    outcomes += _failed(wave.sequences, error)
                    wave.sequences = []
            self._waves = [wave for wave in self._waves if wave.sequences]
        return outcomes

    def drain(self, version: int) -> list[tuple[Sequence, StopReason | FaultError]]:
        """Wait for steps that are still computed, of which there are none here; see `DeviceBatch.drain`."""
        return []

    def preempt(self, version: int) -> None:
        """Send all active sequences back to the head of the queue: their cache will be computed anew on admission."""
        active = self.active
        for wave in self._waves:
            for slot, sequence in enumerate(wave.sequences):
                sequence.settle(*wave.rows.outputs(slot), version)
        self.waiting.extendleft(reversed(active))
        self._waves = []

    def remove(self, wanted: Callable[[Sequence], bool], version: int) -> list[Sequence]:
        """Take out all waiting and active sequences that are `wanted`, with their output settled."""
        removed: list[Sequence] = []
        kept: list[Sequence] = []
        for _ in range(len(self.waiting)):
            sequence = self.waiting.popleft()
            (removed if wanted(sequence) else kept).append(sequence)
        self.waiting.extendleft(reversed(kept))
        with self._guard():
            for wave in self._waves:
                slots = [slot for slot, sequence in enumerate(wave.sequences) if wanted(sequence)]
                for slot in slots:
                    wave.sequences[slot].settle(*wave.rows.outputs(slot), version)
                    removed.append(wave.sequences[slot])
                self._drop(wave, slots)
        self._waves = [wave for wave in self._waves if wave.sequences]
        return removed

    def free(self) -> None:
        """Let go of model and caches, for good. No sequence may be active."""
        self._waves, self._model = [], None

    def _admitted(self) -> list[list[list[Sequence]]]:
        """Waves of waiting sequences, first come first served as slots and tokens allow; those of one prompt together.

        Without padding, prompts of a wave have one length.
        """
        room, budget = self._max_rows - len(self.active), _PREFILL_TOKENS
        groups: dict[bytes, list[Sequence]] = {}
        longest = 0
        while self.waiting and room > 0:
            sequence = self.waiting[0]
            if not sequence.future.done():
                if sequence.key not in groups:
                    longest = max(longest, len(sequence.context))
                    if groups and longest * (len(groups) + 1) > budget:
                        break
                groups.setdefault(sequence.key, []).append(sequence)
                room -= 1
            self.waiting.popleft()
        waves: dict[int, list[list[Sequence]]] = {}
        for members in groups.values():
            waves.setdefault(0 if self._pads else len(members[0].context), []).append(members)
        return list(waves.values())

    def _prefill(self, groups: list[list[Sequence]]) -> _DecodedRows:
        """Compute one row per prompt, and copy it to all samples of it."""
        leaders = [members[0] for members in groups]
        lengths = [len(leader.context) for leader in leaders]
        width = max(lengths)
        cells = torch.zeros((len(leaders), width), dtype=torch.int64, device=self._device)
        mask = torch.zeros_like(cells)
        for row, leader in enumerate(leaders):
            cells[row, width - lengths[row] :] = torch.from_numpy(leader.context).to(self._device)
            mask[row, width - lengths[row] :] = 1
            self.counters["recomputed_tokens" if leader.tokens else "prefill_tokens"] += lengths[row]
            self.counters["shared_tokens"] += lengths[row] * (len(groups[row]) - 1)
        given = None if min(lengths) == width else mask
        options, shifts = self._image_options(leaders, lengths, width)
        states, cache = forward(self._model, cells, given, cache=None, options=options)
        owner = torch.tensor([row for row, members in enumerate(groups) for _ in members], device=self._device)
        cache.reorder_cache(owner)
        sequences = [sequence for members in groups for sequence in members]
        table = RowTable(len(sequences))
        for slot, sequence in enumerate(sequences):
            table.place(slot, sequence, length=len(sequence.context))
        return _DecodedRows(
            sequences=sequences,
            rows=table,
            cache=cache,
            mask=None if given is None else given[owner],
            columns=torch.tensor(lengths, device=self._device)[owner],
            shifts=shifts[owner],
            logits=self._model.project(states[:, -1])[owner],
        )

    def _image_options(self, leaders: list[Sequence], lengths: list[int], width: int) -> tuple[dict[str, Any], Tensor]:
        """Features and positions of rows that are padded on the left; and what shifts later positions, [B]."""
        none = torch.zeros(len(leaders), dtype=torch.int64, device=self._device)
        images = [
            PackedImage(
                digest=ref.image.digest,
                pixels=torch.tensor(ref.image.pixels, device=self._device),
                start=ref.start,
                length=ref.length,
            )
            for leader in leaders
            for ref in leader.request.images
        ]
        if not images:
            return {}, none
        tower, vision = self._model.tower, self._model.vision
        features = tower.features(self._model.inner.base_model, images)
        options: dict[str, Any] = {"mm_encoder_outputs": {"image": features}}
        if not vision.has_grid:
            return options, none
        places = [
            [(ref.start, ref.image.height, ref.image.width) for ref in leader.request.images] for leader in leaders
        ]
        axes, shifts = axis_positions(vision, lengths, places)
        padded = [[[0] * (width - len(axis)) + axis for axis in row] for row in axes]
        options["position_ids"] = torch.tensor(padded, device=self._device).transpose(0, 1)
        return options, torch.tensor(shifts, device=self._device)

    def _advance(self, wave: _DecodedRows, version: int) -> list[tuple[Sequence, StopReason | FaultError]]:
        """Sample the next token of every row of a wave; returns and drops the rows that ended."""
        count = len(wave.sequences)
        logits = self._next_logits(wave) if wave.logits is None else wave.logits
        wave.logits = None
        forbidden = wave.rows.forbidden(count, logits.shape[-1])
        if forbidden is not None:
            logits = logits.clone()
            logits[torch.from_numpy(forbidden[0]), torch.from_numpy(forbidden[1])] = float("-inf")
        uniform = torch.from_numpy(wave.rows.uniform(count)).to(self._device)
        drawn = sample(logits, wave.rows.sampling(count, self._device), uniform)
        tokens, logprobs = drawn[0].cpu().numpy(), drawn[1].double().cpu().numpy()
        ended = wave.rows.record(count, tokens, logprobs)
        self.counters["decode_steps"] += 1
        outcomes: list[tuple[Sequence, StopReason | FaultError]] = []
        slots: list[int] = []
        stopped = wave.rows.stopped(count)
        for slot, sequence in enumerate(wave.sequences):
            broken = not np.isfinite(logprobs[slot])
            refused = sequence.limits.refused
            self.counters["generated_tokens"] += not broken
            outcome: StopReason | FaultError
            if broken:
                outcome = broken_logits(sequence)
            elif int(tokens[slot]) in refused:
                outcome = sampled_placeholder(sequence.request, int(tokens[slot]), refused)
            elif stopped[slot] or sequence.completes_stop_string(wave.rows.outputs(slot)[0]):
                outcome = StopReason.STOP
            elif ended[slot]:
                outcome = StopReason.LENGTH
            else:
                continue
            sequence.settle(*wave.rows.outputs(slot, drop_last=broken), version)
            outcomes.append((sequence, outcome))
            slots.append(slot)
        self._drop(wave, slots)
        return outcomes

    def _next_logits(self, wave: _DecodedRows) -> Tensor:
        """Decode the newest token of every row."""
        count = len(wave.sequences)
        cells = torch.from_numpy(wave.rows.table["token"][:count].copy()).to(self._device)[:, None]
        if wave.mask is not None:
            wave.mask = torch.cat((wave.mask, torch.ones_like(cells)), dim=1)
        positions = (wave.columns + wave.shifts)[:, None]
        vision = self._model.vision
        if vision is not None and vision.has_grid:
            positions = positions.expand(3, -1, -1)
        states, _ = forward(self._model, cells, wave.mask, cache=wave.cache, options={"position_ids": positions})
        wave.columns = wave.columns + 1
        logits: Tensor = self._model.project(states[:, -1])
        return logits

    def _drop(self, wave: _DecodedRows, slots: list[int]) -> None:
        """Take rows out of a wave."""
        gone = set(slots)
        if len(gone) == len(wave.sequences):
            wave.sequences = []
        elif gone:
            wave.keep([slot for slot in range(len(wave.sequences)) if slot not in gone])


def forward(
    model: Any, cells: Tensor, mask: Tensor | None, *, cache: Any, options: dict[str, Any]
) -> tuple[Tensor, Any]:
    """States [B, L, hidden_size] of tokens [B, L] after what the cache holds, and the cache, which now holds them too.

    mask: int64 [B, cached and L], 0 on padding. Positions count from the first token that is none, unless given.
    """
    if cache is None and mask is not None and "position_ids" not in options:
        options = {**options, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        if model.vision is not None:
            cells = text_cells(cells, mask, model.vision.placeholder)
    elif cache is None and mask is not None and model.vision is not None:
        cells = text_cells(cells, mask, model.vision.placeholder)
    found = model.inner.base_model(
        input_ids=cells, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True, **options
    )
    return found.last_hidden_state, found.past_key_values


def _probe(model: Any, device: torch.device) -> bool:
    """Return whether rows may be padded on the left. Raises ModelError when a cache does not continue a sequence."""
    count = min(_PROBE_TOKENS, model.args.vocab_size)
    refused = set(model.vision.refused) if model.vision is not None else set()
    usable = [token for token in range(model.args.vocab_size) if token not in refused][:count]
    tokens = torch.tensor([usable], device=device)
    name = type(model.inner).__name__
    with torch.no_grad():
        bounds = torch.tensor([0, count], dtype=torch.int32, device=device)
        whole = model.hidden(tokens[0], torch.arange(count, device=device), bounds, count)
        scale = whole.float().abs().max().clamp(min=1e-6)

        def differs(states: Tensor, start: int) -> float:
            return float((states.float() - whole[start : start + states.shape[0]].float()).abs().max() / scale)

        half = count // 2
        try:
            states, cache = forward(model, tokens[:, :half], None, cache=None, options={})
            worst = differs(states[0], 0)
            for column in range(half, count):
                options = {"position_ids": torch.tensor([[column]], device=device)}
                if model.vision is not None and model.vision.has_grid:
                    options = {"position_ids": options["position_ids"].expand(3, -1, -1)}
                states, cache = forward(model, tokens[:, column : column + 1], None, cache=cache, options=options)
                worst = max(worst, differs(states[0], column))
            is_plain = all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
        # Whatever a model raises that has no cache of this kind, or takes no positions.
        except Exception as error:
            raise ModelError(f"{name} cannot be sampled in this process: {type(error).__name__}: {error}") from error
        if not worst < _CACHE_TOLERANCE:
            raise ModelError(
                f"{name} cannot be sampled in this process: with its cache it computes other states than without "
                f"(relative error {worst:.1e}); sample from a server"
            )
        if not is_plain:
            return False
        cells = torch.cat((tokens.new_full((1, _PADDED_BY), usable[0]), tokens), dim=1)
        mask = torch.ones_like(cells)
        mask[:, :_PADDED_BY] = 0
        try:
            states, _ = forward(model, cells, mask, cache=None, options={})
        except Exception:  # noqa: BLE001 - models differ in what they refuse; without padding they are right
            return False
        return differs(states[0, _PADDED_BY:], 0) < _PADDING_TOLERANCE


def _failed(sequences: list[Sequence], error: Exception) -> list[tuple[Sequence, StopReason | FaultError]]:
    _logger.error("decoding failed with %d sequences", len(sequences), exc_info=error)
    message = f"the decode step raised {type(error).__name__}: {error}"
    return [(sequence, FaultError(FaultKind.GENERATION_FAILED, message)) for sequence in sequences]
