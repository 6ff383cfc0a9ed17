"""Attention over packed tokens in which a common beginning of several sequences is laid out once.

The tokens are roots, end to end, and then branches, end to end. A root is a sequence of its own; a branch continues one
root, sees all of it and its own tokens before, and nothing of the other branches. Exact: a branch attends to the same
keys as if its root stood before it, and the gradients of a root add up over its branches. Like `PackedAttention`, only
PyTorch operations that run on every device and in the backward pass, or the device's kernel for runs: it attends to
roots once for all their branches, and merges that with what branches see of themselves.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from areal.api import ModelError
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.padded_attention import (
    MAX_PADDING_RATIO,
    AttentionOptions,
    Rectangle,
    Visibility,
    attend,
    make_rectangle,
    restoring_order,
)
from areal.models.blocks.selection import Selections, choose
from areal.models.blocks.shared_keys import KeptKeys
from areal.models.blocks.varlen_attention import KeyRuns, attend_runs, find_kernel
from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ROW_MASK_CELLS: Final = 1 << 22
"""Above this many cells, branches of unequal roots are attended separately: equal roots need no mask per row."""


class Branch(NamedTuple):
    """A continuation of a root."""

    root: int
    """Index of the root it continues."""
    length: int
    """Own tokens."""


class _Span(NamedTuple):
    start: int
    """Index of the first own token, counted from the first token of the first branch."""
    length: int
    root: int


class _BranchBatch(NamedTuple):
    """Branches attended together: a rectangle of own tokens, and their roots as keys on its left."""

    own: Rectangle
    roots: Rectangle
    """The distinct roots of these branches. Padded on the *left*, so that own tokens of all rows start at the same
    key, and the distance of a query and a key is the same in all rows."""
    root_of_row: Tensor
    """int64 [rows]: row of `roots` that a branch continues."""
    visibility: Visibility


class SharedPrefixAttention:
    """An `AttentionBackend` for roots and branches. Make one per forward; layers share its index tables."""

    stateless: Final = True
    """The same call gives the same result any number of times, so that a block may be recomputed."""

    def __init__(self, root_lengths: Sequence[int], branches: Sequence[Branch], device: torch.device) -> None:
        """root_lengths: at least 1 each. ModelError for an empty root, a root that does not exist, or no root at
        all."""
        wrong = [branch for branch in branches if branch.length < 0 or not 0 <= branch.root < len(root_lengths)]
        if wrong or not root_lengths or min(root_lengths) < 1:
            raise ModelError(
                f"shared prefixes need at least one root, no empty root, and branches of existing roots; got "
                f"{len(root_lengths)} roots, the shortest of {min(root_lengths, default=0)} tokens, and branches "
                f"{wrong[:4]} that fit none"
            )
        starts = list(itertools.accumulate(root_lengths, initial=0))
        ends = itertools.accumulate(branch.length for branch in branches)
        spans = [
            _Span(end - branch.length, branch.length, branch.root)
            for branch, end in zip(branches, ends, strict=True)
            if branch.length
        ]
        self._num_root_tokens = starts[-1]
        self._num_tokens = starts[-1] + sum(span.length for span in spans)
        self._roots = PackedAttention(torch.tensor(starts), self._num_root_tokens, device)
        self._spans, self._starts, self._device = spans, starts, device
        self._longest = max((root_lengths[span.root] + span.length for span in spans), default=0)
        self._in_order = all(before.root <= after.root for before, after in itertools.pairwise(spans))
        self._selections = Selections[list[Tensor | None]]()
        self._kept = KeptKeys()

    def __call__(  # noqa: PLR0913 - one keyword per feature of attention
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
        selected: bool = False,
        keep: bool = False,
    ) -> Tensor:
        """See `AttentionBackend`; every feature is supported. Returns [T, num_heads, value_dim]."""
        key, value = self._kept.take(layer, key, value, keep=keep)
        self._check(query)
        options = AttentionOptions(scale, window, chunk, softcap, sinks, alibi, selected)
        first = self._num_root_tokens
        attended = self._roots(layer, query[:first], key[:first], value[:first], **options._asdict())
        if not self._spans:
            return attended
        kernel = find_kernel(query, key, value, options, longest=self._longest)
        # Runs of all branches of a root have no distances, so that no window can be laid over them.
        if kernel is not None and self._in_order and (window is None or window >= self._longest):
            own = (key[first:], value[first:], self._own_runs)
            return torch.cat(
                (attended, attend_runs(kernel, query[first:], [self._of_roots(key, value), own], scale=scale))
            )
        chosen = self._selections.of(layer) if selected else [None] * len(self._batches)
        outputs = []
        for batch, seen in zip(self._batches, chosen, strict=True):
            queries = batch.own.gather(query[first:]).transpose(1, 2)
            keys, values = (_with_roots(heads, first, batch).transpose(1, 2) for heads in (key, value))
            outputs.append(batch.own.scatter(attend(queries, keys, values, batch.visibility, options, seen)))
        if self._restore is not None:
            outputs = [torch.cat(outputs).index_select(0, self._restore)]
        return torch.cat((attended, *outputs))

    def select(self, layer: int, query: Tensor, key: Tensor, weight: Tensor, *, count: int) -> None:
        """See `SelectionBackend.select`; what a branch may choose from begins with its root."""
        self._check(query)
        first = self._num_root_tokens
        self._roots.select(layer, query[:first], key[:first], weight[:first], count=count)
        chosen = []
        for batch in self._batches:
            queries, weights = (batch.own.gather(part[first:]) for part in (query, weight))
            keys = _with_roots(key, first, batch)
            chosen.append(choose(queries, keys, weights, batch.visibility.mask(None, None), count))
        self._selections.keep(layer, chosen)

    def _of_roots(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, KeyRuns]:
        """Keys and values of the roots that are continued, each the run of all its branches' queries."""
        places, runs = self._root_runs
        if places is None:
            first = self._num_root_tokens
            return key[:first], value[:first], runs
        return key.index_select(0, places), value.index_select(0, places), runs

    @cached_property
    def _root_runs(self) -> tuple[Tensor | None, KeyRuns]:
        """Packed index of the tokens of continued roots, None for all roots; and those runs."""
        queries: dict[int, int] = {}
        for span in self._spans:
            queries[span.root] = queries.get(span.root, 0) + span.length
        bounds = [(self._starts[root], self._starts[root + 1]) for root in queries]
        keys = [end - start for start, end in bounds]
        runs = KeyRuns.of(list(queries.values()), keys, self._device, causal=False)
        if sum(keys) == self._num_root_tokens:
            return None, runs
        return upload(torch.cat([torch.arange(*each) for each in bounds]), self._device), runs

    @cached_property
    def _own_runs(self) -> KeyRuns:
        lengths = [span.length for span in self._spans]
        return KeyRuns.of(lengths, lengths, self._device, causal=True)

    @cached_property
    def _groups(self) -> list[list[_Span]]:
        return _group(self._spans, [end - start for start, end in itertools.pairwise(self._starts)])

    @cached_property
    def _batches(self) -> list[_BranchBatch]:
        num_own = self._num_tokens - self._num_root_tokens
        return [_make_batch(group, self._starts, num_own, self._device) for group in self._groups]

    @cached_property
    def _restore(self) -> Tensor | None:
        return restoring_order([[span[:2] for span in group] for group in self._groups], self._device)

    def _check(self, query: Tensor) -> None:
        if query.shape[0] != self._num_tokens:
            raise ModelError(
                f"got {query.shape[0]} packed tokens, but roots and branches have {self._num_tokens}; make one "
                f"SharedPrefixAttention per forward"
            )


def _with_roots(heads: Tensor, first: int, batch: _BranchBatch) -> Tensor:
    """[T, ...] -> [rows, root tokens + own tokens, ...]."""
    # Whole roots are repeated, not single tokens: the gradient then adds blocks, which is several times faster.
    before = batch.roots.gather(heads[:first]).flatten(1).index_select(0, batch.root_of_row)
    own = batch.own.gather(heads[first:])
    return torch.cat((before.unflatten(1, (batch.roots.length, *heads.shape[1:])), own), 1)


def _group(spans: list[_Span], root_lengths: Sequence[int]) -> list[list[_Span]]:
    """Split branches so that padding wastes less than half the cells, and masks of single rows stay small."""
    if not spans:
        return []
    lengths, roots = [span.length for span in spans], [root_lengths[span.root] for span in spans]
    queries = len(spans) * max(lengths)
    keys = len(spans) * (max(lengths) + max(roots))
    large = min(roots) != max(roots) and queries * (max(lengths) + max(roots)) > MAX_ROW_MASK_CELLS
    padded = queries > MAX_PADDING_RATIO * sum(lengths) or keys > MAX_PADDING_RATIO * (sum(lengths) + sum(roots))
    if not (large or padded):
        return [spans]
    groups: dict[tuple[int, int], list[_Span]] = {}
    for span, root in zip(spans, roots, strict=True):
        similar_roots = root if large else (root - 1).bit_length()
        groups.setdefault(((span.length - 1).bit_length(), similar_roots), []).append(span)
    return list(groups.values())


def _make_batch(spans: list[_Span], root_starts: list[int], num_own: int, device: torch.device) -> _BranchBatch:
    distinct = list(dict.fromkeys(span.root for span in spans))
    starts = torch.tensor([root_starts[root] for root in distinct])
    lengths = torch.tensor([root_starts[root + 1] - root_starts[root] for root in distinct])
    longest = int(lengths.max())
    padding = longest - lengths
    columns = torch.arange(longest)
    is_real = columns >= padding[:, None]
    source = torch.where(is_real, (starts - padding)[:, None] + columns, 0).flatten()
    place = {root: row for row, root in enumerate(distinct)}
    root_of_row = torch.tensor([place[span.root] for span in spans])
    own = make_rectangle([span[:2] for span in spans], num_own, device)
    real = None
    if not is_real.all():
        real = torch.cat((is_real[root_of_row], torch.ones(len(spans), own.length, dtype=torch.bool)), 1)
        real = upload(real[:, None, None], device)
    roots = Rectangle(len(distinct), longest, upload(source, device), None)
    visibility = Visibility(own.length, longest, device, real=real)
    return _BranchBatch(own, roots, upload(root_of_row, device), visibility)
