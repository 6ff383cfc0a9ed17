"""Carrier of weights straight from the shards of trainer ranks to the workers of all servers, bucket by bucket.

No host holds a copy of the model: what is sent are the present weights. So a version can be sent as long as training
has not gone on; a server that comes later gets the next one (`can_send`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from areal.api import (
    BASE_VERSION,
    NO_VERSION,
    EngineError,
    PublishedWeights,
    SentWeights,
    TensorEntry,
    WeightManifest,
    WeightRoute,
)
from areal.infra.weights.manifest import identity_of
from areal.infra.weights.stream import StreamOrder
from areal.utils.process_groups import begin_transfer, open_store
from areal.utils.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.api import LowRankChange, ServerInstance
    from areal.infra.weights.layout import StreamLayout
    from areal.infra.weights.stream import StreamOutcome


class StreamingRanks(Protocol):
    """The trainer's ranks, as rank 0 leads them."""

    def layout(self) -> StreamLayout:
        """Return the plan of every stream, on which all ranks agree."""
        ...

    def is_at(self, version: int) -> bool:
        """Whether the present weights are those of this version."""
        ...

    def stream(self, order: StreamOrder, store: Any) -> StreamOutcome | None:
        """Stream the present weights, on all ranks; None, with the workers notified, when they are not those of the
        order's version. store: rank 0's own, of the groups' meeting."""
        ...


class ShardCarrier:
    """See the module. backend: "gloo" or "nccl". device: where buffers lie while they travel, "cpu" for gloo. deltas:
    whether servers that keep the version before are sent only the buckets that differ.
    """

    def __init__(
        self,
        ranks: StreamingRanks,
        *,
        backend: str,
        device: str,
        timeout_seconds: float,
        host: str = "127.0.0.1",
        deltas: bool = False,
    ) -> None:
        self._deltas = deltas
        self._manifest: WeightManifest | None = None
        """Of the order."""
        self._sent: WeightManifest | None = None
        """Of the version that was sent last, with its digests."""
        self._outcome: SentWeights | None = None
        self._ranks, self._backend, self._device = ranks, backend, device
        self._timeout_seconds, self._host = timeout_seconds, host
        self._members: tuple[tuple[str, int], ...] = ()
        self._store: Any = None
        self._port = self._sessions = self._transfers = 0
        self._called_off = ""
        self._order: StreamOrder | None = None
        self.digests: dict[str, str] = {}
        """Of the tensors of the last version that was sent."""

    def publish(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        *,
        base: PublishedWeights | None = None,
        changes: Sequence[LowRankChange] = (),
    ) -> PublishedWeights:
        """See `WeightCarrier.publish`. tensors: only names, dtypes and shapes count; digests follow with the stream."""
        if version == BASE_VERSION or base is not None or changes:
            raise EngineError("weights.carrier shards sends whole models only; use another carrier for adapters")
        entries = tuple(
            TensorEntry(name=name, dtype=dtype_name(tensor), shape=tuple(tensor.shape), digest="")
            for name, tensor in tensors.items()
        )
        stored = {name for unit in self._ranks.layout().units for name in unit.stored}
        if stored != {entry.name for entry in entries}:
            raise EngineError(
                f"the ranks hold {len(stored)} stored tensors, {len(entries)} are published; weights.carrier shards "
                "sends the model as it is held"
            )
        manifest = WeightManifest(version=version, entries=entries, keep=self._deltas)
        before, delta = self._sent, None
        if self._deltas and before is not None and _outline(before) == _outline(manifest):
            # What differs is found out while it streams, where the tensors are.
            delta = replace(manifest, since=identity_of(before))
        return PublishedWeights(manifest=manifest, delta=delta)

    def keep_only(self, version: int) -> None:
        """See `WeightCarrier.keep_only`: nothing is kept."""

    def can_send(self, published: PublishedWeights) -> bool:
        """See `WeightCarrier.can_send`: until training goes on."""
        return self._ranks.is_at(published.manifest.version)

    def routes(
        self, published: PublishedWeights, servers: Sequence[ServerInstance], workers: Sequence[int]
    ) -> list[WeightRoute]:
        """See `WeightCarrier.routes`: ranks of workers follow the order of `servers`."""
        layout = self._ranks.layout()
        members = tuple((server.incarnation, count) for server, count in zip(servers, workers, strict=True))
        if members != self._members or self._store is None:
            self._leave()
            # The store counts the trainer's ranks only; workers connect like clients.
            self._store, self._port = open_store(
                self._host, world_size=layout.num_ranks, timeout_seconds=self._timeout_seconds
            )
            self._members = members
            self._sessions += 1
        self._manifest, self._called_off = published.manifest, ""
        self._transfers += 1
        on_top = self._sent is not None and published.manifest.since == identity_of(self._sent)
        if published.manifest.since and not on_top:
            raise EngineError("the version that this one goes on top of was not the last one that was sent")
        self._order = StreamOrder(
            version=published.manifest.version,
            since=self._sent.version if self._sent is not None and published.manifest.since else NO_VERSION,
            host=self._host,
            port=self._port,
            session=self._sessions,
            num_workers=sum(workers),
            backend=self._backend,
            device=self._device,
            timeout_seconds=self._timeout_seconds,
        )
        buckets = [
            {
                "collector": layout.collectors.index(bucket.collector),
                "names": [name for number in bucket.units for name in layout.units[number].stored],
            }
            for bucket in layout.buckets
        ]
        routes, rank = [], 1
        for count in workers:
            source = {
                "kind": "shards",
                "host": self._host,
                "port": self._port,
                "session": self._sessions,
                "transfer": self._transfers,
                "rank": rank,
                "world_size": 1 + sum(workers),
                "backend": self._backend,
                "timeout_seconds": self._timeout_seconds,
                "buckets": buckets,
            }
            routes.append(WeightRoute(source=source))
            rank += count
        return routes

    def send(self) -> None:
        """See `WeightCarrier.send`."""
        assert self._order is not None, "routes() comes before send()"
        try:
            begin_transfer(
                self._store,
                self._transfers,
                ranks=range(1, 1 + self._order.num_workers),
                called_off=lambda: self._called_off,
                timeout_seconds=self._timeout_seconds,
            )
        except RuntimeError as error:
            self._members = ()  # the store stays until the next stream: who comes late is told there
            raise EngineError(f"the stream of weights failed: {error}") from error
        outcome = self._ranks.stream(replace(self._order), self._store)
        if outcome is None:
            self._leave()
            raise EngineError(
                f"weights of version {self._order.version} cannot be sent any more: training has gone on, and no copy "
                "of them is kept"
            )
        if outcome.failure:
            self._leave()
            raise EngineError(f"the stream of weights failed: {outcome.failure}")
        self.digests = dict(outcome.digests)
        assert self._manifest is not None, "routes() sets it"
        entries = tuple(replace(entry, digest=self.digests[entry.name]) for entry in self._manifest.entries)
        self._sent = WeightManifest(version=self._order.version, entries=entries, keep=self._deltas)
        self._outcome = SentWeights(
            identity=identity_of(self._sent),
            num_bytes=outcome.sent_bytes,
            skipped_bytes=self._ranks.layout().stream_bytes - outcome.sent_bytes,
        )

    def call_off(self, reason: str) -> None:
        """See `WeightCarrier.call_off`."""
        self._called_off = reason

    def sent(self) -> SentWeights:
        """See `WeightCarrier.sent`: bytes of buckets."""
        assert self._outcome is not None, "send() comes before sent()"
        return self._outcome

    def close(self) -> None:
        """Leave the groups. Idempotent."""
        self._leave()

    def _leave(self) -> None:
        # The next stream meets at a new store, under a new session number.
        self._store = None
        self._members = ()


def _outline(manifest: WeightManifest) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(entry.name, entry.dtype, entry.shape) for entry in manifest.entries]
