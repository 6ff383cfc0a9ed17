"""Rows of a batch as tensors that stay where they are: settings of sampling, random streams, budgets, who has ended.

The host writes a row when a sequence enters, and moves rows when others leave; between, a step reads and changes them
alone. No address and no shape changes, so that a captured step can be replayed.

Shape letters: R slots, N rows that are stepped, S stop tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from areal.engine.embedded.device.randomness import device_uniforms, signed
from areal.engine.embedded.device.sampling import draw
from areal.engine.embedded.sequence import SamplingRows, seed_state
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from numpy.typing import NDArray
    from torch import Tensor

    from areal.engine.embedded.sequence import Sequence

_INTEGERS: Final = ("token", "length", "count", "limit", "min_new", "drawn", "state", "top_k", "greedy", "ended")
_FLOATS: Final = ("temperature", "top_p")
_NO_TOKEN: Final = -1
_FEWEST_STOPS: Final = 8


@dataclass(frozen=True, slots=True)
class StepShape:
    """What is fixed when a step is captured; two steps of one shape are the same work on the same memory."""

    rows: int
    """Slots 0 .. rows - 1 are computed, those without a sequence as well."""
    longest: int
    """Entries of the cache that are looked at, at least one more than any row has."""
    filters: bool
    """Whether a row has top-k or top-p."""
    samples: bool
    """Whether a row is not greedy."""


class DeviceRows:
    """One row per slot. Slots without a sequence count as ended: they are computed, and nothing comes of it."""

    def __init__(self, max_rows: int, device: torch.device, refused: SequenceOf[int] = ()) -> None:
        """refused: tokens that end a row as a fault, see `areal.engine.checks.RequestLimits.refused`."""
        self._device = device
        self._integers = torch.zeros(len(_INTEGERS), max_rows, dtype=torch.int64, device=device)
        self._floats = torch.ones(len(_FLOATS), max_rows, dtype=torch.float64, device=device)
        self._stops = torch.full((max_rows, _FEWEST_STOPS), _NO_TOKEN, dtype=torch.int64, device=device)
        self._refused = upload(torch.tensor(list(refused), dtype=torch.int64), device) if refused else None
        self._of("ended").fill_(1)

    def enter(self, slots: SequenceOf[int], sequences: SequenceOf[Sequence]) -> bool:
        """Write rows whose next token is the one after their context, all but the last token of which is cached.

        Returns whether the table of stop tokens has been made anew, to have room for more of them.
        """
        stops = [sorted(each.limits.stop_ids(each.request)) for each in sequences]
        is_wider = max(map(len, stops)) > self._stops.shape[1]
        if is_wider:
            wider = self._stops.new_full((self._stops.shape[0], max(map(len, stops))), _NO_TOKEN)
            wider[:, : self._stops.shape[1]] = self._stops
            self._stops = wider
        padded = np.full((len(stops), self._stops.shape[1]), _NO_TOKEN, dtype=np.int64)
        for row, ids in zip(padded, stops, strict=True):
            row[: len(ids)] = ids
        integers = np.array([_integers_of(each) for each in sequences], dtype=np.int64)
        configs = [each.request.gconfig for each in sequences]
        floats = [[1.0, 1.0] if each.greedy else [each.temperature, each.top_p] for each in configs]
        index = self._upload(np.array(slots))
        self._integers.index_copy_(1, index, self._upload(np.ascontiguousarray(integers.T)))
        self._floats.index_copy_(1, index, self._upload(np.ascontiguousarray(np.array(floats).T)))
        self._stops.index_copy_(0, index, self._upload(padded))
        return is_wider

    def keep(self, slots: NDArray[np.int64], total: int) -> None:
        """Make the given ones of the first `total` rows the first rows, in this order; the rest has ended."""
        index = self._upload(slots)
        count = len(slots)
        self._integers[:, :count] = self._integers.index_select(1, index)
        self._floats[:, :count] = self._floats.index_select(1, index)
        self._stops[:count] = self._stops.index_select(0, index)
        self._integers[:, count:total] = 0
        self._of("ended")[count:total] = 1

    def inputs(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return the newest token of the first rows, and how much each has in the cache; int64 [rows] both."""
        return self._of("token")[:rows], self._of("length")[:rows]

    def advance(self, logits: Tensor, shape: StepShape) -> Tensor:
        """Sample the next token of the first rows, and decide who has ended; reads nothing from the device.

        logits: [N, vocab]. Returns int32 [3, N]: the token, -1 where the row had ended before; the bits of its
        log-probability in float32; whether the row has ended.
        """
        rows = shape.rows
        integers = dict(zip(_INTEGERS, self._integers[:, :rows], strict=True))
        temperature, top_p = self._floats[:, :rows]
        stops, count = self._stops[:rows], integers["count"]
        settings = SamplingRows(
            temperature=temperature[:, None].float(),
            top_k=integers["top_k"][:, None] if shape.filters else None,
            top_p=top_p[:, None] if shape.filters else None,
            greedy=integers["greedy"] != 0,
        )
        uniform = device_uniforms(integers["state"], integers["drawn"] + count) if shape.samples else None
        forbidden = stops.masked_fill((count >= integers["min_new"])[:, None], _NO_TOKEN)
        tokens, logprobs = draw(logits, settings, uniform, forbidden)
        live = integers["ended"] == 0
        ends = (tokens[:, None] == stops).any(1) | (count + 1 >= integers["limit"]) | ~logprobs.isfinite()
        if self._refused is not None:
            ends |= (tokens[:, None] == self._refused).any(1)
        goes_on = live & ~ends
        # A row that has ended stays as it is, so that what is computed for it later is written over one entry of its
        # own, and a token that the model must not be given is never looked up.
        integers["token"].copy_(torch.where(goes_on, tokens, integers["token"]))
        integers["length"].add_(goes_on)
        count.add_(live)
        integers["ended"].copy_(~goes_on)
        shown = tokens.masked_fill(~live, _NO_TOKEN).int()
        return torch.stack((shown, logprobs.view(torch.int32), (~goes_on).int()))

    def _of(self, name: str) -> Tensor:
        return self._integers[_INTEGERS.index(name)]

    def _upload(self, values: NDArray[np.int64] | NDArray[np.float64]) -> Tensor:
        return upload(torch.from_numpy(values), self._device)


def _integers_of(sequence: Sequence) -> tuple[int, ...]:
    """Values of `_INTEGERS`."""
    request, done = sequence.request, len(sequence.tokens)
    config = request.gconfig
    assert request.seed is not None, "the engine gives every request a seed"
    return (
        int(sequence.context[-1]),
        len(sequence.context) - 1,
        0,
        sequence.limits.budget(request) - done,
        config.min_new_tokens - done,
        request.sampled_before + done,
        signed(seed_state(request.seed)),
        0 if config.greedy else config.top_k,
        int(config.greedy),
        0,
    )
