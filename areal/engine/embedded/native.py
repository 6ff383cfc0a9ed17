"""Forwards of the batch by `kernel.c`: which rows there are, on how many threads, and whether the kernel is right.

A row is one new token: that of a sequence that goes on, or one of a new prompt. Rows are numbers of their own, so a
step is cut into as many parts as there are threads, each a call that goes through all layers without waiting.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from areal.engine.embedded.cache import KVCache
from areal.engine.embedded.native_layout import NativeModel, UnsupportedLayer
from areal.models.wrapping import refused_tokens
from areal.utils.computing import threads_beside_training

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray
    from torch import Tensor

_MIN_PART: Final = 8
"""Rows from which another thread is worth waking."""
_MIN_CONTEXT: Final = 64
_CHECKED: Final = 24
"""Tokens that are compared before the kernel is used."""
_MAX_DEVIATION: Final = 1e-3
"""Of logits, relative to the largest. Float32 is within 1e-5; a layer that is not what it seems is beyond."""

ROW: Final = np.dtype([(name, np.int64) for name in ("token", "prompt", "prompt_count", "slot", "own_count", "logits")])
"""`struct row` of the kernel."""


class NativeForward:
    """Logits of a `DecoderModel` by the kernel.

    model: its weights are copied; call `refresh` when they have changed. max_length: most tokens of a sequence.
    Raises UnsupportedLayer for a model that the kernel does not compute, or computes otherwise than torch.
    """

    def __init__(self, library: ctypes.CDLL, model: Any, *, max_length: int) -> None:
        library.panel_width.restype = library.scratch_bytes.restype = ctypes.c_int64
        library.forward.restype = None
        self._library = library
        self._model = model
        self._max_length = max_length
        self._context = 0
        self._scratch: list[Tensor] = []
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0
        """Whose threads are those of the pool."""
        self._native = NativeModel(model, panel=library.panel_width())
        self._check()

    def refresh(self) -> None:
        """Take over the weights as they are now."""
        self._native.refresh()
        self._context = 0

    def logits(self, rows: NDArray[np.void], count: int, cache: KVCache, prompts: KVCache) -> Tensor:
        """Write keys and values of all rows, and return the logits float32 [count, vocab] of those that want them.

        rows: of dtype ROW; those of one new prompt side by side and in order, under one slot.
        """
        self._reserve(int((rows["prompt_count"] + rows["own_count"]).max()))
        self._point_at(cache, prompts)
        record = ctypes.byref(self._native.record)
        stride = self._native.record.head.out
        logits = torch.empty(count, stride)
        parts = _parts(rows, threads_beside_training(torch.get_num_threads()))
        while len(self._scratch) < len(parts):
            self._scratch.append(torch.empty(self._library.scratch_bytes(record), dtype=torch.uint8))

        def compute(part: NDArray[np.void], scratch: Tensor) -> None:
            start, length = ctypes.c_void_p(part.ctypes.data), ctypes.c_int64(len(part))
            target, beside = ctypes.c_void_p(logits.data_ptr()), ctypes.c_void_p(scratch.data_ptr())
            self._library.forward(record, start, length, target, ctypes.c_int64(stride), beside)

        if len(parts) > 1 and (self._pool is None or self._process != os.getpid()):
            # A process that was forked has the pool, and not its threads.
            self._pool, self._process = ThreadPoolExecutor(thread_name_prefix="decode"), os.getpid()
        others: list[Future[None]] = []
        try:
            for part, scratch in zip(parts[1:], self._scratch[1:], strict=False):
                assert self._pool is not None, "it is there for more than one part"
                others.append(self._pool.submit(compute, part, scratch))
            compute(parts[0], self._scratch[0])
        finally:
            # Also after an interrupt: they write to caches, which the caller then drops.
            wait(others)
        for other in others:
            other.result()
        return logits[:, : self._native.vocab]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()

    def _reserve(self, longest: int) -> None:
        """Have room for sequences of `longest` tokens."""
        if longest > self._context:
            self._context = min(self._max_length, max(longest, 2 * self._context, _MIN_CONTEXT))
            self._native.reserve(self._context)
            self._native.record.context = self._context
            self._scratch.clear()

    def _point_at(self, cache: KVCache, prompts: KVCache) -> None:
        """Tell the kernel where the caches are, which move when they grow."""
        self._native.record.capacity, self._native.record.prompt_capacity = cache.capacity, prompts.capacity
        for layer, (number, like) in zip(self._native.layers, self._native.cached, strict=True):
            keys, values = cache.layer(number, like, like)
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
            keys, values = prompts.layer(number, like, like)
            layer.prompt_keys, layer.prompt_values = keys.data_ptr(), values.data_ptr()

    def _check(self) -> None:
        """Compare logits of a few tokens with those of the modules: half of them as a prompt, the others one by one."""
        refused = refused_tokens(self._model.args)
        length = min(_CHECKED, self._max_length)
        allowed = [token for token in range(min(self._native.vocab, 997)) if token not in refused]
        tokens = torch.tensor([allowed[place * 131 % len(allowed)] for place in range(length)])
        bounds = torch.tensor([0, length], dtype=torch.int32)
        wanted = self._model.project(self._model.hidden(tokens, torch.arange(length), bounds, length))
        cache, prompts = (KVCache(max_slots=1, max_length=self._max_length) for _ in range(2))
        cache.reserve(1, length)
        prompts.reserve(1, length)
        rows = np.zeros(length, dtype=ROW)
        rows["token"] = tokens.numpy()
        rows["prompt_count"] = np.minimum(np.arange(length) + 1, length // 2)
        rows["own_count"] = np.arange(length) + 1 - rows["prompt_count"]
        first = length // 2 + 1
        found = []
        for piece in (rows[:first], *(rows[place : place + 1] for place in range(first, length))):
            piece["logits"] = np.arange(len(piece))
            found.append(self.logits(piece, len(piece), cache, prompts))
        # Broken weights leave nothing to compare.
        compared = wanted.isfinite()
        errors, largest = (torch.cat(found) - wanted)[compared].abs(), wanted[compared].abs()
        error = float(errors.max() / largest.max().clamp_min(1e-30)) if len(errors) else 0.0
        if not error <= _MAX_DEVIATION:
            raise UnsupportedLayer(f"logits of the kernel differ from those of the model by {error:.1e} of the largest")


def make_rows(
    table: NDArray[np.void], prompts: Sequence[NDArray[np.int64]], groups: Sequence[int | None]
) -> NDArray[np.void]:
    """Return the rows of a step: one for each entry of the table of active rows, then all tokens of new prompts.

    prompts: their tokens; they go to the slots behind the active ones. groups: the shared prompt that each leaves all
    but its last token in, None where it keeps it itself. The logits of what follows each are wanted.
    """
    active = len(table)
    rows = np.empty(active + sum(map(len, prompts)), dtype=ROW)
    decode = rows[:active]
    decode["token"], decode["prompt"], decode["prompt_count"] = table["token"], table["group"], table["before"]
    decode["slot"] = decode["logits"] = np.arange(active)
    decode["own_count"] = table["length"] - table["before"] + 1
    if active and decode["prompt"].max() >= 0:
        # What sees the same prompt is computed side by side.
        rows[:active] = decode[np.argsort(decode["prompt"], kind="stable")]
    start = active
    for slot, (tokens, group) in enumerate(zip(prompts, groups, strict=True), active):
        part = rows[start : start + len(tokens)]
        start += len(tokens)
        shared = 0 if group is None else len(tokens) - 1
        part["token"], part["slot"], part["prompt"] = tokens, slot, -1 if group is None else group
        counts = np.arange(1, len(tokens) + 1)
        part["prompt_count"] = np.minimum(counts, shared)
        part["own_count"] = counts - part["prompt_count"]
        part["logits"] = -1
        part["logits"][-1] = slot
    return rows


def _parts(rows: NDArray[np.void], threads: int) -> list[NDArray[np.void]]:
    """Cut rows into up to `threads` parts of about equal size; those of one slot stay together."""
    number = min(threads, len(rows) // _MIN_PART)
    if number < 2:
        return [rows]
    borders = np.flatnonzero(np.diff(rows["slot"])) + 1
    wanted = np.arange(1, number) * len(rows) // number
    cuts = borders[np.searchsorted(borders, wanted).clip(max=len(borders) - 1)] if len(borders) else []
    return [part for part in np.split(rows, np.unique(cuts)) if len(part)]
