"""Plans how weights travel from the shards of trainer ranks to servers, a bucket at a time, so that no host ever has
all of them.

    pieces     what one rank sends: its part of one parameter, in the dtype in which it is served
    unit       parameters that are stored together, so that they are converted together
    bucket     units whose stored tensors travel in one buffer
    collector  the rank that puts a bucket's units together and sends it to all workers; ranks take turns

Every rank computes the same plan from the same holdings. Pure: numbers and names only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.api import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Bounds = tuple[tuple[int, int], ...]
"""Part of a tensor: start and stop along each dimension."""
ALIGNMENT: Final = 16
"""Bytes; see `areal.utils.tensors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterLayout:
    """A parameter of the trained model."""

    name: str
    shape: tuple[int, ...]
    width: int
    """Bytes of one value on its way to the collector."""
    cast_width: int = 0
    """Bytes of one value in a dtype that it is rounded to before; 0 when there is none in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferUnit:
    """Parameters that are stored together, and the stored tensors they become."""

    parameters: tuple[ParameterLayout, ...]
    stored: tuple[str, ...]
    """Names, as in a Hugging Face checkpoint."""
    stored_bytes: tuple[int, ...]
    copied_bytes: int = 0
    """Of memory that the conversion takes besides."""
    in_place: bool = False
    """Whether its one parameter is stored as it is, so that it is put together inside of the bucket."""

    @property
    def bucket_bytes(self) -> int:
        """Room in a bucket."""
        return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in self.stored_bytes)

    @property
    def collected_bytes(self) -> int:
        """Of memory for its parameters, put together."""
        if self.in_place:
            return 0
        return sum(math.prod(each.shape) * each.width for each in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a parameter, and the rank that sends it."""

    parameter: int
    """Place in the unit."""
    bounds: Bounds
    sender: int

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(stop - start for start, stop in self.bounds)

    def is_run(self, shape: Sequence[int]) -> bool:
        """Whether its values are neighbours in memory: at most the first dimension is cut."""
        return all(part == (0, size) for part, size in zip(self.bounds[1:], shape[1:], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Units that travel together."""

    collector: int
    units: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLayout:
    """The whole plan. `pieces` has those of each unit, in the order in which they are sent."""

    units: tuple[TransferUnit, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    buckets: tuple[Bucket, ...]
    collectors: tuple[int, ...]
    num_ranks: int

    @property
    def stream_bytes(self) -> int:
        """Bytes that every worker receives."""
        return sum(bucket.num_bytes for bucket in self.buckets)

    def sent_to_collectors(self) -> Counter[int]:
        """Return the bytes that each rank sends to collectors other than itself."""
        found: Counter[int] = Counter()
        for bucket in self.buckets:
            for number in bucket.units:
                for piece in self.pieces[number]:
                    if piece.sender != bucket.collector:
                        found[piece.sender] += piece.size * self.units[number].parameters[piece.parameter].width
        return found

    def sent_to_workers(self) -> Counter[int]:
        """Return the bytes that each rank broadcasts."""
        found: Counter[int] = Counter()
        for bucket in self.buckets:
            found[bucket.collector] += bucket.num_bytes
        return found

    def peak_bytes(self, rank: int) -> int:
        """Return the most memory that streaming takes on a rank, beside the trained model.

        Two buffers if it collects any buckets, and the largest of: a unit that it puts together with what that takes
        besides, a piece that it sends.
        """
        work = 0
        for bucket in self.buckets:
            for number in bucket.units:
                unit, pieces = self.units[number], self.pieces[number]
                if rank == bucket.collector:
                    arriving = sum(self._arriving_bytes(unit, piece, rank) for piece in pieces)
                    own = max((self.prepared_bytes(unit, piece) for piece in pieces if piece.sender == rank), default=0)
                    besides = max(arriving + own, unit.copied_bytes)
                    work = max(work, unit.collected_bytes + besides)
                else:
                    own = max((self.prepared_bytes(unit, piece) for piece in pieces if piece.sender == rank), default=0)
                    work = max(work, own)
        return sum(self.buffer_bytes(rank)) + work

    def buffer_bytes(self, rank: int) -> tuple[int, int]:
        """Return the sizes of the two buffers that a rank fills in turn with the buckets that it collects."""
        sizes = [bucket.num_bytes for bucket in self.buckets if bucket.collector == rank]
        return max(sizes[::2], default=0), max(sizes[1::2], default=0)

    @staticmethod
    def prepared_bytes(unit: TransferUnit, piece: Piece) -> int:
        """Return the memory that a piece takes on its sender: converted, and in the dtype in between."""
        parameter = unit.parameters[piece.parameter]
        return piece.size * (parameter.width + parameter.cast_width)

    @staticmethod
    def _arriving_bytes(unit: TransferUnit, piece: Piece, collector: int) -> int:
        """Return the memory that a piece takes on its way into its unit: none where it is received in its place."""
        parameter = unit.parameters[piece.parameter]
        if piece.sender == collector or piece.is_run(parameter.shape):
            return 0
        return piece.size * parameter.width


def plan_stream(
    units: Sequence[TransferUnit],
    holdings: Mapping[str, Mapping[Bounds, Sequence[int]]],
    *,
    num_ranks: int,
    bucket_bytes: int,
    max_collectors: int,
) -> StreamLayout:
    """Plan a stream. holdings: parameter to the parts there are of it, and the ranks that have each.

    Parts that several ranks have are sent by one: the collector if it has them, else the one that has least to send.
    Raises EngineError when a parameter is not covered exactly once by its parts.
    """
    check_holdings(units, holdings)
    count = max(1, min(max_collectors, num_ranks))
    collectors = tuple(index * num_ranks // count for index in range(count))
    runs = list(_runs(units, bucket_bytes))
    sizes = [sum(units[number].bucket_bytes for number in run) for run in runs]
    buckets = [
        Bucket(collector=collector, units=tuple(run), num_bytes=num_bytes)
        for run, num_bytes, collector in zip(runs, sizes, _assigned(sizes, collectors), strict=True)
    ]
    wanted = [
        (number, place, bounds, holdings[parameter.name][bounds], bucket.collector)
        for bucket in buckets
        for number in bucket.units
        for place, parameter in enumerate(units[number].parameters)
        for bounds in sorted(holdings[parameter.name])
    ]
    pieces: list[list[Piece]] = [[] for _ in units]
    for (number, place, bounds, _, _), sender in zip(wanted, _senders(units, wanted), strict=True):
        pieces[number].append(Piece(parameter=place, bounds=bounds, sender=sender))
    return StreamLayout(
        units=tuple(units),
        pieces=tuple(map(tuple, pieces)),
        buckets=tuple(buckets),
        collectors=collectors,
        num_ranks=num_ranks,
    )


def merge_holdings(
    by_rank: Iterable[Mapping[str, Bounds]],
) -> dict[str, dict[Bounds, list[int]]]:
    """Return who has which parts, from what each rank, in their order, has; empty parts are left out."""
    found: dict[str, dict[Bounds, list[int]]] = {}
    for rank, own in enumerate(by_rank):
        for name, bounds in own.items():
            parts = found.setdefault(name, {})
            if all(stop > start for start, stop in bounds):
                parts.setdefault(bounds, []).append(rank)
    return found


def check_holdings(units: Sequence[TransferUnit], holdings: Mapping[str, Mapping[Bounds, Sequence[int]]]) -> None:
    """Raise EngineError unless the parts of every parameter cover it exactly once."""
    for unit in units:
        for parameter in unit.parameters:
            parts = holdings.get(parameter.name)
            if parts is None:
                raise EngineError(f"no rank has a part of {parameter.name}, which is served")
            covered = sum(math.prod(stop - start for start, stop in bounds) for bounds in parts)
            outside = [
                bounds
                for bounds in parts
                if len(bounds) != len(parameter.shape)
                or any(stop > size or start < 0 for (start, stop), size in zip(bounds, parameter.shape, strict=True))
            ]
            if outside or covered != math.prod(parameter.shape) or _overlap(list(parts)):
                raise EngineError(
                    f"the parts of {parameter.name} {list(parameter.shape)} do not cover it exactly once: "
                    f"{sorted(parts)[:8]}"
                )


def _overlap(parts: list[Bounds]) -> bool:
    """Whether two parts have values in common. Parts of the right total size that do not overlap cover everything."""
    # Of a grid, only parts that begin at the same place along the first dimension can be compared pairwise cheaply.
    ordered = sorted(parts)
    active: list[Bounds] = []
    for bounds in ordered:
        active = [other for other in active if not bounds or other[0][1] > bounds[0][0]]
        for other in active:
            if all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(bounds, other, strict=True)):
                return True
        active.append(bounds)
    return False


def _senders(units: Sequence[TransferUnit], wanted: Sequence[tuple[int, int, Bounds, Sequence[int], int]]) -> list[int]:
    """Return the sender of each piece, large ones first: the collector, or the one that has least to send.

    wanted: unit, place of the parameter in it, part, ranks that have it, and the bucket's collector.
    """
    sent: defaultdict[int, int] = defaultdict(int)
    found = [0] * len(wanted)
    sizes = [
        math.prod(stop - start for start, stop in bounds) * units[number].parameters[place].width
        for number, place, bounds, _, _ in wanted
    ]
    for index in sorted(range(len(wanted)), key=lambda index: -sizes[index]):
        _, _, _, ranks, collector = wanted[index]
        if collector in ranks:
            found[index] = collector
            continue
        found[index] = min(ranks, key=lambda rank: (sent[rank], rank))
        sent[found[index]] += sizes[index]
    return found


def _assigned(sizes: Sequence[int], collectors: Sequence[int]) -> list[int]:
    """Return the collector of each bucket: large ones first, each to the one that has least; equal ones in turn."""
    total: dict[int, int] = dict.fromkeys(collectors, 0)
    found = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        found[number] = min(collectors, key=lambda rank: total[rank])
        total[found[number]] += sizes[number]
    return found


def _runs(units: Sequence[TransferUnit], bucket_bytes: int) -> Iterable[list[int]]:
    """Cut the units into runs of at most `bucket_bytes`; a larger unit has a run of its own."""
    run: list[int] = []
    size = 0
    for number, unit in enumerate(units):
        if run and size + unit.bucket_bytes > bucket_bytes:
            yield run
            run, size = [], 0
        run.append(number)
        size += unit.bucket_bytes
    if run:
        yield run
