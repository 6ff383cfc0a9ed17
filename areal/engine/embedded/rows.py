"""Host-side bookkeeping of the batch: one row per slot, all operations vectorised over rows (numpy)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from areal.engine.embedded.sampling import SamplingRows, seed_state, uniforms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from areal.engine.embedded.sequence import Sequence

# Fields of 8 bytes each, so that one assignment moves a row.
_ROW = np.dtype(
    [
        ("length", np.int64),  # entries in the key/value cache
        ("token", np.int64),  # newest token, not cached yet
        ("count", np.int64),  # outputs held here, not settled yet
        ("limit", np.int64),  # outputs still allowed, those held here included
        ("min_new", np.int64),  # outputs before which stop tokens are forbidden
        ("drawn", np.int64),  # random numbers of the stream that were used before
        ("state", np.uint64),  # identifies the random stream
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("greedy", np.int64),
    ]
)
_NO_STOP = -1


class RowTable:
    """Slots 0 .. n - 1 are active; `n` is the caller's business."""

    def __init__(self, max_rows: int) -> None:
        self.table = np.zeros(max_rows, dtype=_ROW)
        self._tokens = np.zeros((max_rows, 64), dtype=np.int64)
        self._logprobs = np.zeros((max_rows, 64), dtype=np.float64)
        self._stops = np.full((max_rows, 1), _NO_STOP, dtype=np.int64)
        self._index = np.arange(max_rows)

    def place(self, slot: int, sequence: Sequence, *, length: int) -> None:
        """Fill a row for a sequence whose first `length` tokens will be cached when its next token is sampled."""
        config, done = sequence.request.gconfig, len(sequence.tokens)
        limit = sequence.limit - done
        self.table[slot] = (
            length,
            sequence.context[-1],
            0,
            limit,
            config.min_new_tokens - done,
            sequence.request.sampled_before + done,
            seed_state(sequence.request.seed),
            1.0 if config.greedy else config.temperature,
            0 if config.greedy else config.top_k,
            1.0 if config.greedy else config.top_p,
            int(config.greedy),
        )
        if limit > self._tokens.shape[1]:
            extra = max(limit, 2 * self._tokens.shape[1]) - self._tokens.shape[1]
            self._tokens = np.pad(self._tokens, ((0, 0), (0, extra)))
            self._logprobs = np.pad(self._logprobs, ((0, 0), (0, extra)))
        if len(sequence.stop_ids) > self._stops.shape[1]:
            extra = len(sequence.stop_ids) - self._stops.shape[1]
            self._stops = np.pad(self._stops, ((0, 0), (0, extra)), constant_values=_NO_STOP)
        self._stops[slot] = _NO_STOP
        self._stops[slot, : len(sequence.stop_ids)] = sequence.stop_ids

    def record(self, rows: int, tokens: NDArray[np.int64], logprobs: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Append one token to each of the first rows. Returns bool [rows]: which ended, by stop token or limit."""
        table = self.table[:rows]
        counts = table["count"]
        self._tokens[self._index[:rows], counts] = tokens
        self._logprobs[self._index[:rows], counts] = logprobs
        table["token"] = tokens
        counts += 1
        ended: NDArray[np.bool_] = self.stopped(rows) | (counts >= table["limit"])
        return ended

    def stopped(self, rows: int) -> NDArray[np.bool_]:
        """bool [rows]: whose newest token is one of its stop tokens."""
        hits: NDArray[np.bool_] = (self.table["token"][:rows, None] == self._stops[:rows]).any(axis=1)
        return hits

    def outputs(self, slot: int, *, drop_last: bool = False) -> tuple[list[int], list[float]]:
        """Tokens and log-probabilities held for a row."""
        count = int(self.table["count"][slot]) - drop_last
        return self._tokens[slot, :count].tolist(), self._logprobs[slot, :count].tolist()

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows `sources` over rows `targets`."""
        for array in (self.table, self._tokens, self._logprobs, self._stops):
            array[targets] = array[sources]

    def uniform(self, rows: int) -> NDArray[np.float64]:
        """The random number of each row's next token."""
        table = self.table[:rows]
        return uniforms(table["state"], table["drawn"] + table["count"])

    def forbidden(self, rows: int, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """(row, token) pairs that must not be sampled now; None when there are none, the usual case."""
        early = self.table["count"][:rows] < self.table["min_new"][:rows]
        if not early.any():
            return None
        stops = self._stops[:rows]
        row, column = np.nonzero(early[:, None] & (stops >= 0) & (stops < vocab_size))
        return row, stops[row, column]

    def sampling(self, rows: int, device: torch.device) -> SamplingRows:
        """Sampling settings of the first rows as tensors."""
        table = self.table[:rows]
        temperature, top_k, top_p = table["temperature"], table["top_k"], table["top_p"]
        greedy = table["greedy"] != 0
        filtered = bool((top_k > 0).any() or (top_p < 1).any())
        return SamplingRows(
            temperature=_column(temperature.astype(np.float32), device) if (temperature != 1.0).any() else None,
            top_k=_column(top_k, device) if filtered else None,
            top_p=_column(top_p, device) if filtered else None,
            greedy=torch.from_numpy(greedy).to(device) if greedy.any() else None,
            all_greedy=bool(greedy.all()),
        )


def _column(
    values: NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64], device: torch.device
) -> torch.Tensor:
    # A copy: the table changes under a tensor that shares its memory.
    return torch.from_numpy(values.copy()).to(device)[:, None]
