"""Requests in the batch: what has been generated for each, its row, and how the next token of a row is drawn.

A `Sequence` is plain values; the `RowTable` has one row per slot of the batch, with all operations vectorised over rows
(numpy). `sample` and the functions below it are pure functions on tensors, without a global random generator.

The *processed* distribution of a row is softmax(filter(logits / temperature)): temperature first, then top-k, then
top-p on what top-k left, each renormalised. A greedy row has temperature 1 and no filter. The log-probability of a
token is the one under the processed distribution, in float32.

Randomness is counter-based: number i of a request is a function of (seed, i) alone, so neither the other rows of a
batch nor an interruption changes it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from areal.api import FaultError, FaultKind, ModelRequest, ModelResponse, StopReason

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray
    from torch import Tensor

    from areal.engine.checks import RequestLimits

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """A request on its way: waiting, or active in a slot of the batch."""

    request: ModelRequest
    future: asyncio.Future[ModelResponse]
    limits: RequestLimits
    context: NDArray[np.int64] = field(init=False)
    """All tokens that precede the next one at the time of (re-)admission."""
    key: bytes = field(init=False)
    """`context` and the digests of its images: sequences with equal keys share a prefill."""
    tokens: list[int] = field(default_factory=list)
    """Output settled so far; the batch holds newer tokens until it flushes them."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)
    """Pieces [n, M, K], laid end to end, of the tokens that the model was given; empty unless they are recorded."""
    num_routed: int = 0
    """Tokens in `routes`."""
    accepted_at: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Check the request. Raises FaultError and ConfigError, see `RequestLimits.check`."""
        self.limits.check(self.request)
        self.settle([], [], 0)

    def settle(self, tokens: list[int], logprobs: list[float], version: int) -> None:
        """Append tokens that were all sampled at `version`."""
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        self.versions.extend([version] * len(tokens))
        self.context = np.array([*self.request.input_ids, *self.tokens], dtype=np.int64)
        images = ";".join(f"{ref.start} {ref.image.digest}" for ref in self.request.images)
        self.key = self.context.tobytes() + images.encode()

    def add_routes(self, routes: Tensor) -> None:
        """Record the routes [n, M, K] of the first n tokens; those of tokens that have some already stay."""
        if routes.shape[0] > self.num_routed:
            self.routes.append(routes[self.num_routed :])
            self.num_routed = routes.shape[0]

    def response(self, reason: StopReason) -> ModelResponse:
        """Return the settled output as the caller gets it."""
        return ModelResponse(
            input_tokens=list(self.request.input_ids),
            output_tokens=self.tokens,
            output_logprobs=self.logprobs,
            output_versions=self.versions,
            stop_reason=reason,
            latency_seconds=time.perf_counter() - self.accepted_at,
            # A token that was dropped again, such as one without a distribution, was given to nobody.
            routes=torch.cat(self.routes)[: len(self.context) - 1] if self.routes else None,
        )

    def completes_stop_string(self, newer: list[int]) -> bool:
        """Whether the output, `newer` tokens not yet settled included, ends in or just completed a stop string."""
        return self.limits.completes_stop_string(self.request, self.tokens + newer)


def broken_logits(sequence: Sequence) -> FaultError:
    """Return the fault of a sequence whose next token has no distribution."""
    return FaultError(
        FaultKind.GENERATION_FAILED,
        f"request {sequence.request.request_id}: logits of output token {len(sequence.tokens)} are not finite; "
        f"the weights are probably broken, or overflow in their dtype",
    )


# Fields of 8 bytes each, so that one assignment moves a row.
_ROW = np.dtype(
    [
        ("length", np.int64),  # entries in the key/value cache, those of the group's prompt included
        ("group", np.int64),  # slot of the prompt that it shares; -1 for none
        ("before", np.int64),  # of `length`, entries of that prompt
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

    def place(self, slot: int, sequence: Sequence, *, length: int, group: int = -1, before: int = 0) -> None:
        """Fill a row for a sequence whose first `length` tokens will be cached when its next token is sampled, the
        first `before` of them in the shared prompt `group`."""
        config, done = sequence.request.gconfig, len(sequence.tokens)
        limit = sequence.limits.budget(sequence.request) - done
        assert sequence.request.seed is not None, "the engine gives every request a seed"
        self.table[slot] = (
            length,
            group,
            before,
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
        stop_ids = sequence.limits.stop_ids(sequence.request)
        if len(stop_ids) > self._stops.shape[1]:
            extra = len(stop_ids) - self._stops.shape[1]
            self._stops = np.pad(self._stops, ((0, 0), (0, extra)), constant_values=_NO_STOP)
        self._stops[slot] = _NO_STOP
        self._stops[slot, : len(stop_ids)] = stop_ids

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
        """Draw the random number of each row's next token."""
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
        """Return the sampling settings of the first rows as tensors."""
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


def seed_state(seed: int) -> int:
    """Mix any integer into 64 bits, so that neighbouring seeds give unrelated streams."""
    # As `_mix`, of one number: Python's own are several times as fast as an array of one.
    value = (seed + _GOLDEN) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def uniforms(states: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw number `counters[r]` of stream `states[r]`, uniform in the open interval (0, 1); SplitMix64 by counter.

    52 bits plus a half: both ends stay out of reach after rounding to float64, so an inverse CDF never leaves its
    support.
    """
    offsets = (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    bits = _mix(states + offsets) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Sampling settings of the rows of a batch; None where no row needs the step."""

    temperature: Tensor | None = None
    """float32 [N, 1]."""
    top_k: Tensor | None = None
    """int64 [N, 1]; 0 keeps all. Given together with top_p."""
    top_p: Tensor | None = None
    """float64 [N, 1]; 1 keeps all."""
    greedy: Tensor | None = None
    """bool [N]."""
    all_greedy: bool = False
    """No row samples: random numbers are not looked at."""


def processed_logits(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Logits [N, vocab] of any float dtype to float32 logits whose softmax is the processed distribution."""
    logits = logits.float()
    if rows.temperature is not None:
        logits = logits / rows.temperature
    if rows.top_k is not None and rows.top_p is not None:
        logits = _filter(logits, rows.top_k, rows.top_p)
    return logits


def sample(logits: Tensor, rows: SamplingRows, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    logits: [N, vocab]. uniform: float64 [N] in (0, 1). Returns (tokens int64 [N], log-probabilities float32 [N]); a
    row whose logits contain NaN or +inf has a log-probability that is not finite, and a meaningless token.
    """
    logits = processed_logits(logits, rows)
    logprobs = torch.log_softmax(logits, dim=-1)
    if rows.all_greedy:
        tokens = logits.argmax(dim=-1)
    else:
        tokens = _invert(logprobs, uniform)
        if rows.greedy is not None:
            tokens = torch.where(rows.greedy, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """First token whose cumulated probability exceeds uniform * total: a token of probability 0 is never the first."""
    cumulated = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    target = uniform * cumulated[:, -1]
    tokens = torch.searchsorted(cumulated, target[:, None], right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[1] - 1)


def _filter(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Remove what top-k, then top-p exclude. Equal logits rank by token id, so the kept set is always well defined."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    drop_k = (rank >= top_k) & (top_k > 0)
    probabilities = torch.softmax(ordered.masked_fill(drop_k, float("-inf")), dim=-1, dtype=torch.float64)
    before = probabilities.cumsum(dim=-1) - probabilities
    # Without a limit nothing is dropped, even where rounding makes the cumulated sum reach 1 early; the best token
    # stays.
    drop_p = (before >= top_p) & (top_p < 1) & (rank > 0)
    drop = torch.zeros_like(drop_k).scatter_(1, order, drop_k | drop_p)
    return logits.masked_fill(drop, float("-inf"))
