"""Streams weights from shards to servers: the part of one trainer rank (see `layout`).

While a collector hands bucket k out, bucket k + 1 is collected into its other buffer, usually by another rank. Among
trainer ranks a stream always runs to its end, also when a server fails: collectors then collect and hand out nothing.
So ranks never wait for each other in vain, and the failure is one of the servers'.

Not measured here: NCCL between devices. With gloo, buffers are in host memory.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from areal.api import NO_VERSION
from areal.utils.process_groups import broadcast, connect_store, join_group, receive, say, send
from areal.utils.tensors import digests, dtype_of, views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor

    from areal.infra.weights.layout import Bounds, Bucket, Piece, StreamLayout

_REPORT_TAG: Final = 2**30
_PEER_PATIENCE: Final = 10
"""How many times longer trainer ranks wait for each other than for servers: a peer may be waiting for a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart:
    """What a rank has of a parameter."""

    tensor: Tensor
    """The live values."""
    bounds: Bounds
    dtype: torch.dtype
    """In which the parameter is handed out; values are rounded to it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamModel:
    """What is streamed: how parameters become stored tensors."""

    layout: StreamLayout
    wire: tuple[tuple[torch.dtype, ...], ...]
    """Of each unit, the dtypes in which its parameters travel to the collector."""
    convert: Callable[[int, Mapping[str, Tensor]], Mapping[str, Tensor]]
    """(number of a unit, its parameters) -> its stored tensors."""
    entries: Mapping[str, Mapping[str, Any]]
    """Stored name to {"dtype", "shape"}, as served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """What rank 0 asks of all ranks, for one version to some servers."""

    version: int
    host: str
    port: int
    session: int
    """Of the groups; they are kept as long as it is the same."""
    num_workers: int
    backend: str
    device: str
    timeout_seconds: float
    since: int = NO_VERSION
    """The version that all of the servers keep: only buckets that differ from it are handed out. NO_VERSION: all."""


class StreamLinks(Protocol):
    """How one rank reaches the others and, as a collector, the workers."""

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Send to another rank; returns when the tensor may be changed."""
        ...

    def receive(self, tensor: Tensor, rank: int, tag: int) -> Callable[[], object]:
        """Begin to receive; call the result to wait for the end."""
        ...

    def hand_out(self, buffer: Tensor) -> None:
        """Send a bucket to all workers. Raises RuntimeError."""
        ...

    def offer(self, wanted: bool) -> None:
        """Tell all workers whether the next bucket of this collector follows. Raises RuntimeError."""
        ...

    def announce(self, text: str) -> None:
        """On the first collector: send a text to all workers. Raises RuntimeError."""
        ...


class MemoryMeter:
    """Counts the bytes that a stream holds, and their peak."""

    def __init__(self) -> None:
        self.held = self.peak = 0

    def take(self, num_bytes: int) -> None:
        """Record that so many more are held."""
        self.held += num_bytes
        self.peak = max(self.peak, self.held)

    def give(self, num_bytes: int) -> None:
        """Record that so many were freed."""
        self.held -= num_bytes


class GroupLinks:
    """`StreamLinks` through process groups that meet at rank 0's store. Built by all ranks together.

    store: rank 0's own; None connects to it.
    """

    def __init__(self, order: StreamOrder, layout: StreamLayout, rank: int, *, store: Any = None) -> None:
        self._order, self._layout, self._rank = order, layout, rank
        self._store = store or connect_store(
            order.host, order.port, world_size=layout.num_ranks, timeout_seconds=order.timeout_seconds
        )
        self.bytes_to_peers = self.bytes_to_workers = 0
        self._to_workers: Any = None
        self._peers: Any = None
        if layout.num_ranks > 1:
            self._peers = join_group(
                self._store,
                rank=rank,
                world_size=layout.num_ranks,
                backend=order.backend,
                timeout_seconds=order.timeout_seconds * _PEER_PATIENCE,
                name="trainer",
            )

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        """See `StreamLinks`."""
        self.bytes_to_peers += tensor.nbytes
        send(self._peers, tensor, rank, tag)

    def receive(self, tensor: Tensor, rank: int, tag: int) -> Callable[[], object]:
        """See `StreamLinks`."""
        work = receive(self._peers, tensor, rank, tag)
        wait: Callable[[], object] = work.wait
        return wait

    def hand_out(self, buffer: Tensor) -> None:
        """See `StreamLinks`."""
        broadcast(self._workers(), buffer)
        self.bytes_to_workers += buffer.nbytes

    def offer(self, wanted: bool) -> None:
        """See `StreamLinks`."""
        import torch

        broadcast(self._workers(), torch.tensor([int(wanted)], dtype=torch.uint8, device=self._order.device))

    def announce(self, text: str) -> None:
        """See `StreamLinks`."""
        say(self._workers(), text, self._order.device)

    def _workers(self) -> Any:
        """Return the group of this collector and all workers; the first call waits for them."""
        if self._to_workers is None:
            self._to_workers = join_group(
                self._store,
                rank=0,
                world_size=1 + self._order.num_workers,
                backend=self._order.backend,
                timeout_seconds=self._order.timeout_seconds,
                name=f"collector-{self._layout.collectors.index(self._rank)}",
            )
        return self._to_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOutcome:
    """How a stream went, as the rank knows it; rank 0 knows it of all."""

    digests: Mapping[str, str]
    """Stored name to digest of the bytes as they were sent."""
    failure: str = ""
    """Why servers did not get everything; empty when they did."""
    peak_bytes: int = 0
    """Most memory that was held on this rank."""
    sent_bytes: int = 0
    """Of buckets that were handed out to each worker."""


class ShardStream:
    """Streams one version. own: this rank's parts, by name of the parameter; they do not change meanwhile."""

    def __init__(
        self,
        model: StreamModel,
        own: Mapping[str, OwnPart],
        links: StreamLinks,
        *,
        rank: int,
        device: str,
        on_bucket: Callable[[int], None] = lambda number: None,
        known: Mapping[str, str] | None = None,
    ) -> None:
        """on_bucket: called on every rank with the number of each bucket before it is collected. known: stored name to
        digest of what the workers keep, as far as this collector handed it out; None hands out everything.
        """
        self._known, self._sent_bytes = known, 0
        self._model, self._layout, self._own, self._links = model, model.layout, own, links
        self._rank, self._device, self._on_bucket = rank, device, on_bucket
        self._meter = MemoryMeter()
        self._digests: dict[str, str] = {}
        self._failure = ""

    def run(self) -> StreamOutcome:
        """Stream everything; all ranks call it together. What fails on the way to servers is in the outcome."""
        if self._rank == 0:
            self._announce({})
        buffers = self._buffers()
        busy: list[Future[None] | None] = [None, None]
        turn = tag = 0
        with ThreadPoolExecutor(1, thread_name_prefix="areal-hand-out") as pool:
            for number, bucket in enumerate(self._layout.buckets):
                self._on_bucket(number)
                if bucket.collector != self._rank:
                    tag = self._send_bucket(bucket, tag)
                    continue
                if (before := busy[turn]) is not None:
                    before.result()
                buffer = buffers[turn][: bucket.num_bytes]
                tag = self._collect_bucket(bucket, buffer, tag)
                busy[turn] = pool.submit(self._hand_out, bucket, buffer)
                turn = 1 - turn
            for future in busy:
                if future is not None:
                    future.result()
        self._meter.give(sum(buffer.nbytes for buffer in buffers))
        return self._finish()

    def _buffers(self) -> list[Tensor]:
        import torch

        sizes = self._layout.buffer_bytes(self._rank)
        self._meter.take(sum(sizes))
        return [torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes]

    def _send_bucket(self, bucket: Bucket, tag: int) -> int:
        for number in bucket.units:
            for piece in self._layout.pieces[number]:
                if piece.sender == self._rank:
                    value, num_bytes = self._prepared(number, piece)
                    self._links.send(value, bucket.collector, tag)
                    self._meter.give(num_bytes)
                tag += 1
        return tag

    def _collect_bucket(self, bucket: Bucket, buffer: Tensor, tag: int) -> int:
        """Fill a buffer with the stored tensors of a bucket."""
        names = [name for number in bucket.units for name in self._layout.units[number].stored]
        places = dict(zip(names, views(buffer, [self._model.entries[name] for name in names]), strict=True))
        for number in bucket.units:
            tag = self._collect_unit(number, places, tag)
        return tag

    def _collect_unit(self, number: int, places: Mapping[str, Tensor], tag: int) -> int:
        import torch

        unit = self._layout.units[number]
        values = [
            places[unit.stored[0]] if unit.in_place else torch.empty(parameter.shape, dtype=dtype, device=self._device)
            for parameter, dtype in zip(unit.parameters, self._model.wire[number], strict=True)
        ]
        self._meter.take(unit.collected_bytes)
        waiting: list[tuple[Callable[[], object], Tensor | None, Tensor]] = []
        own: list[Piece] = []
        for piece in self._layout.pieces[number]:
            target = _part(values[piece.parameter], piece.bounds)
            if piece.sender == self._rank:
                own.append(piece)
            elif piece.is_run(unit.parameters[piece.parameter].shape):
                waiting.append((self._links.receive(target, piece.sender, tag), None, target))
            else:
                arriving = torch.empty(target.shape, dtype=target.dtype, device=self._device)
                self._meter.take(arriving.nbytes)
                waiting.append((self._links.receive(arriving, piece.sender, tag), arriving, target))
            tag += 1
        for piece in own:
            value, num_bytes = self._prepared(number, piece)
            _part(values[piece.parameter], piece.bounds).copy_(value)
            self._meter.give(num_bytes)
        for wait, aside, target in waiting:
            wait()
            if aside is not None:
                target.copy_(aside)
                self._meter.give(aside.nbytes)
        del waiting
        if unit.in_place:
            return tag
        self._meter.take(unit.copied_bytes)
        by_name = {parameter.name: value for parameter, value in zip(unit.parameters, values, strict=True)}
        for name, tensor in self._model.convert(number, by_name).items():
            places[name].copy_(tensor)
        self._meter.give(unit.copied_bytes + unit.collected_bytes)
        return tag

    def _prepared(self, number: int, piece: Piece) -> tuple[Tensor, int]:
        """Return this rank's values as they travel, and the bytes to give back when they are not needed any more."""
        unit = self._layout.units[number]
        part = self._own[unit.parameters[piece.parameter].name]
        assert part.bounds == piece.bounds, "a piece is all that a rank has of a parameter"
        num_bytes = self._layout.prepared_bytes(unit, piece)
        self._meter.take(num_bytes)
        wire = self._model.wire[number][piece.parameter]
        return part.tensor.detach().to(part.dtype).to(wire).to(self._device).contiguous(), num_bytes

    def _hand_out(self, bucket: Bucket, buffer: Tensor) -> None:
        """Digest and send a bucket; in the thread for that."""
        names = [name for number in bucket.units for name in self._layout.units[number].stored]
        stored = views(buffer, [self._model.entries[name] for name in names])
        self._digests |= digests(dict(zip(names, stored, strict=True)))
        if self._failure:
            return
        if self._known is not None:
            differs = any(self._known.get(name) != self._digests[name] for name in names)
            self._try(lambda: self._links.offer(differs))
            if not differs:
                return
        if not self._failure:
            self._try(lambda: self._links.hand_out(buffer))
            self._sent_bytes += buffer.nbytes

    def _announce(self, content: Mapping[str, Any]) -> None:
        self._try(lambda: self._links.announce(json.dumps(content)))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except RuntimeError as error:
            self._failure = self._failure or f"rank {self._rank} could not reach the servers' workers: {error}"

    def _finish(self) -> StreamOutcome:
        """Bring the outcomes of all collectors to rank 0, which sends the digests to the workers."""
        if self._rank != 0:
            if self._rank in self._layout.collectors:
                self._report()
            return self._outcome()
        for rank in self._layout.collectors[1:]:
            found = self._reported(rank)
            self._digests |= found["digests"]
            self._sent_bytes += found["sent_bytes"]
            self._failure = self._failure or found["failure"]
        self._announce({"failed": self._failure} if self._failure else {"digests": self._digests})
        return self._outcome()

    def _outcome(self) -> StreamOutcome:
        return StreamOutcome(
            digests=self._digests,
            failure=self._failure,
            peak_bytes=self._meter.peak,
            sent_bytes=self._sent_bytes,
        )

    def _report(self) -> None:
        import torch

        text = json.dumps({"digests": self._digests, "failure": self._failure, "sent_bytes": self._sent_bytes})
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(self._device)
        self._links.send(torch.tensor([data.numel()], device=self._device), 0, _REPORT_TAG)
        self._links.send(data, 0, _REPORT_TAG + 1)

    def _reported(self, rank: int) -> dict[str, Any]:
        import torch

        size = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._links.receive(size, rank, _REPORT_TAG)()
        data = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        self._links.receive(data, rank, _REPORT_TAG + 1)()
        found: dict[str, Any] = json.loads(bytes(data.cpu().tolist()))
        return found


def _part(tensor: Tensor, bounds: Bounds) -> Tensor:
    return tensor[tuple(slice(start, stop) for start, stop in bounds)]


def dtype_width(name: str) -> int:
    """Return the bytes of one value of a dtype, e.g. 2 of "bfloat16"."""
    return int(dtype_of(name).itemsize)
