"""Between trajectories, padded batches and packed tokens; and how a batch is cut into parts. Values move, nothing is
computed.

Right padding; a padded batch is trimmed to its longest sequence. Cutting never changes a result: losses divide by
denominators of the whole step, so any split into micro-batches adds up to the same number.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from areal.algorithm.images import collate_images, select_images
from areal.api import NO_VERSION, BatchImages, DataError, PackedTokens, PaddedBatch, Trajectory
from areal.utils.routes import unrecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NUMPY_TYPES = {torch.float32: np.float32, torch.int64: np.int64}
_PER_TOKEN = frozenset(
    {
        "advantages",
        "candidate_logp",
        "candidate_teacher_logp",
        "candidates",
        "logp_behave",
        "logp_prox",
        "logp_ref",
        "loss_mask",
        "returns",
        "routes",
        "teacher_logp",
        "tokens",
        "turn_ids",
        "turn_rewards",
        "values",
        "versions",
    }
)


class Outlined(Protocol):
    """What is known of all rows of a batch wherever their tensors are: enough to divide and to cut it."""

    @property
    def lengths(self) -> Tensor:
        """int64 [S], true length of each sequence."""
        ...

    @property
    def groups(self) -> Tensor:
        """int64 [S], equal for samples of one prompt."""
        ...

    @property
    def rows_per_unit(self) -> int:
        """See `PaddedBatch.rows_per_unit`."""
        ...


def collate(trajectories: Sequence[Trajectory], *, pad_token: int = 0, with_samples: bool = False) -> PaddedBatch:
    """Pad on the right to the longest trajectory. with_samples: trajectories of one `group_id` and `sample_index` are
    branches of one sample; without a group, or without this, each is a sample of its own.

    Raises DataError without trajectories, or with one that is empty or whose lists per token have other lengths.
    """
    if not trajectories:
        raise DataError("collate: no trajectories; a batch has at least one sequence")
    empty = [index for index, trajectory in enumerate(trajectories) if not trajectory.tokens]
    if empty:
        raise DataError(f"collate: trajectories {empty[:8]} have no tokens")
    lengths = [len(trajectory.tokens) for trajectory in trajectories]
    width = max(lengths)

    is_token = torch.arange(width) < torch.tensor(lengths)[:, None]

    def stack(read: Callable[[Trajectory], Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        rows = list(map(read, trajectories))
        if (found := list(map(len, rows))) != lengths:
            index = next(index for index, length in enumerate(lengths) if found[index] != length)
            raise DataError(
                f"collate: trajectory {index} has {found[index]} entries in a list per token for {lengths[index]} "
                f"tokens: it was changed after its check; share no list between trajectories"
            )
        # Laid end to end by NumPy, which takes a third of the time of `torch.tensor` for the same numbers.
        laid = np.fromiter(itertools.chain.from_iterable(rows), dtype=_NUMPY_TYPES[dtype], count=sum(lengths))
        return torch.full(is_token.shape, fill, dtype=dtype).masked_scatter_(is_token, torch.from_numpy(laid))

    return PaddedBatch(
        tokens=stack(attrgetter("tokens"), pad_token, torch.int64),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        loss_mask=stack(attrgetter("loss_mask"), 0, torch.float32),
        logp_behave=stack(attrgetter("logprobs"), 0.0, torch.float32),
        versions=stack(attrgetter("versions"), NO_VERSION, torch.int64),
        turn_ids=stack(attrgetter("turn_ids"), NO_VERSION, torch.int64),
        rewards=torch.tensor([item.reward for item in trajectories], dtype=torch.float32),
        groups=torch.tensor([item.group_id for item in trajectories], dtype=torch.int64),
        truncated=torch.tensor([item.truncated for item in trajectories], dtype=torch.bool),
        turn_rewards=(
            stack(_placed_turn_rewards, 0.0, torch.float32) if any(item.turn_rewards for item in trajectories) else None
        ),
        samples=_samples(trajectories) if with_samples else None,
        images=collate_images([item.images for item in trajectories]),
        routes=_collate_routes([item.routes for item in trajectories], width),
    )


def select(batch: PaddedBatch, indices: Sequence[int] | Tensor) -> PaddedBatch:
    """Return the given rows in the given order, trimmed to the longest of them; optional fields stay present or absent.

    The result has the type of `batch`: rows that would split or turn round a pair raise ValueError.
    """
    rows = torch.as_tensor(indices, dtype=torch.int64, device=batch.lengths.device)
    if rows.numel() == 0:
        raise DataError("select: no rows given; a batch has at least one sequence")
    width = int(batch.lengths[rows].max())
    changes: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, BatchImages):
            changes[item.name] = select_images(value, rows.tolist())
        elif value is not None:
            changes[item.name] = value[rows, :width] if item.name in _PER_TOKEN else value[rows]
    return replace(batch, **changes)


def pack(batch: PaddedBatch) -> PackedTokens:
    """Lay the sequences end to end, without padding."""
    cu_seqlens = torch.zeros(batch.lengths.shape[0] + 1, dtype=torch.int32, device=batch.lengths.device)
    cu_seqlens[1:] = batch.lengths.cumsum(0)
    _, positions = _coordinates(batch.lengths)
    return PackedTokens(
        tokens=pack_values(batch.tokens, batch.lengths),
        positions=positions,
        cu_seqlens=cu_seqlens,
        max_seqlen=int(batch.lengths.max()) if batch.lengths.numel() else 0,
    )


def pack_values(values: Tensor, lengths: Tensor) -> Tensor:
    """[S, L, ...] to [T, ...] without padding, differentiable; inverse of `unpack`. lengths: int [S]."""
    if lengths.numel() and int(lengths.max()) > values.shape[1]:
        raise DataError(
            f"pack: longest sequence has {int(lengths.max())} tokens, the padded width is {values.shape[1]}"
        )
    rows, columns = _coordinates(lengths)
    return values[rows, columns]


def unpack(values: Tensor, cu_seqlens: Tensor, width: int | None = None, *, fill: float = 0.0) -> Tensor:
    """[T, ...] to [S, L, ...] padded on the right with `fill`, differentiable.

    cu_seqlens: int [S + 1], as in `PackedTokens`. width: L, at least the longest sequence; None takes the longest.
    """
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).to(torch.int64)
    longest = int(lengths.max()) if lengths.numel() else 0
    width = longest if width is None else width
    if width < longest or int(cu_seqlens[-1]) != values.shape[0]:
        raise DataError(
            f"unpack: {values.shape[0]} values for cu_seqlens ending at {int(cu_seqlens[-1])}, longest sequence "
            f"{longest}, width {width}"
        )
    rows, columns = _coordinates(lengths)
    padded = values.new_full((lengths.shape[0], width, *values.shape[1:]), fill)
    return padded.index_put((rows, columns), values)


def micro_batches(lengths: Sequence[int] | Tensor, max_tokens: int) -> list[list[int]]:
    """Cut sequences into micro-batches of at most `max_tokens` tokens, as few as first-fit-decreasing finds, and
    balanced.

    Every index occurs exactly once; a sequence longer than the budget is alone in its micro-batch. Deterministic: ties
    go to the lower index, indices ascend inside a micro-batch, micro-batches are ordered by their first index.
    """
    if max_tokens < 1:
        raise ValueError(f"micro_batches: max_tokens is {max_tokens}, expected at least 1")
    if isinstance(lengths, Tensor):
        lengths = lengths.tolist()
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    alone = [[index] for index in order if lengths[index] > max_tokens]
    rest = [index for index in order if lengths[index] <= max_tokens]
    fitted = _first_fit(rest, lengths, max_tokens)
    # Longest-first onto the least loaded bin mostly evens the load, but can also do worse than the first fit.
    balanced = _least_loaded(rest, lengths, len(fitted))
    heaviest = [max((sum(lengths[i] for i in part) for part in parts), default=0) for parts in (fitted, balanced)]
    return sorted(sorted(part) for part in [*alone, *(balanced if heaviest[1] < heaviest[0] else fitted)])


def units(batch: Outlined) -> list[list[int]]:
    """Row indices that no part may separate or reorder: single rows, or the pairs of a `PairedBatch`."""
    size, number = batch.rows_per_unit, batch.lengths.shape[0]
    return [list(range(first, first + size)) for first in range(0, number, size)]


def split_groups(groups: Tensor | Sequence[int], parts: int) -> list[list[int]]:
    """Row indices of `parts` minibatches, never splitting a group; group counts differ by at most one.

    groups: [S], any integers. Groups keep their order of first appearance, rows their order. Raises ValueError when
    there are fewer groups than parts.
    """
    rows: dict[int, list[int]] = {}
    if parts == 1 and len(groups):
        return [list(range(len(groups)))]
    for index, group in enumerate(groups.tolist() if isinstance(groups, Tensor) else groups):
        rows.setdefault(int(group), []).append(index)
    members = list(rows.values())
    if not 1 <= parts <= len(members):
        raise ValueError(f"split_groups: {parts} parts of {len(members)} groups; every part needs at least one group")
    bounds = [round(part * len(members) / parts) for part in range(parts + 1)]
    return [
        sorted(index for group in members[start:end] for index in group) for start, end in itertools.pairwise(bounds)
    ]


def _placed_turn_rewards(trajectory: Trajectory) -> list[float]:
    """Return the reward of each turn on the last token that was sampled in it."""
    placed = [0.0] * len(trajectory.tokens)
    last = {turn: index for index, turn in enumerate(trajectory.turn_ids) if trajectory.loss_mask[index]}
    for turn, reward in trajectory.turn_rewards.items():
        placed[last[turn]] = reward
    return placed


def _samples(trajectories: Sequence[Trajectory]) -> Tensor | None:
    """Return the number of each trajectory's sample, int64 [S]; None when no two are of one."""
    numbers: dict[tuple[int, int, int], int] = {}
    found = []
    for index, item in enumerate(trajectories):
        own = index if item.group_id < 0 else -1
        found.append(numbers.setdefault((item.group_id, item.sample_index, own), len(numbers)))
    return torch.tensor(found, dtype=torch.int64) if len(numbers) < len(found) else None


def _coordinates(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(row, column) of every token of sequences laid end to end, both int64 [T]."""
    wide = lengths.to(torch.int64)
    rows = torch.repeat_interleave(torch.arange(wide.shape[0], device=wide.device), wide)
    starts = wide.cumsum(0) - wide
    return rows, torch.arange(rows.shape[0], device=wide.device) - starts[rows]


def _first_fit(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Each index into the first bin with room."""
    bins: list[list[int]] = []
    loads: list[int] = []
    for index in order:
        for position, load in enumerate(loads):
            if load + lengths[index] <= max_tokens:
                bins[position].append(index)
                loads[position] += lengths[index]
                break
        else:
            bins.append([index])
            loads.append(lengths[index])
    return bins


def _least_loaded(order: Sequence[int], lengths: Sequence[int], number: int) -> list[list[int]]:
    """Each index into the bin with the fewest tokens, lowest bin first on ties."""
    bins: list[list[int]] = [[] for _ in range(number)]
    loads = [0] * number
    for index in order:
        position = min(range(number), key=loads.__getitem__)
        bins[position].append(index)
        loads[position] += lengths[index]
    return bins


def _collate_routes(rows: Sequence[Tensor | None], width: int) -> Tensor | None:
    """Return [S, width, M, K], `unrecorded` where a row has no record; None when no row has one."""
    known = [row for row in rows if row is not None]
    if not known:
        return None
    kinds = {(row.dtype, *row.shape[1:]) for row in known}
    if len(kinds) > 1:
        raise DataError(f"collate: routes of several models in one batch: {sorted(map(str, kinds))}")
    first = known[0]
    batch = first.new_full((len(rows), width, *first.shape[1:]), unrecorded(first.dtype))
    for place, row in zip(batch, rows, strict=True):
        if row is not None:
            place[: row.shape[0]] = row
    return batch
