"""Carrier of weights through a process group of the trainer (rank 0) and the workers of all servers.

The group is built for the servers of one transfer and kept as long as the same servers take part. A copy of the last
version stays in host memory: servers that come back later get it, while the trained weights have moved on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal.api import BASE_VERSION, EngineError, PublishedWeights, SentWeights, WeightRoute
from areal.infra.weights.manifest import Versions, manifest_of, sent_of
from areal.utils.process_groups import begin_transfer, broadcast, join_group, open_store
from areal.utils.tensors import bucket_bytes, buckets, views
from areal.utils.transfers import download

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.api import LowRankChange, ServerInstance

Membership = tuple[tuple[str, int], ...]


class BroadcastCarrier:
    """See the module. backend: "gloo" or "nccl". device: where buffers lie while they travel, "cpu" for gloo. deltas:
    whether servers that keep the version before are sent only the tensors that differ.
    """

    def __init__(
        self,
        *,
        backend: str,
        device: str,
        bucket_bytes: int,
        timeout_seconds: float,
        host: str = "127.0.0.1",
        deltas: bool = False,
    ) -> None:
        self._versions = Versions(deltas=deltas)
        self._backend, self._device, self._bucket_bytes = backend, device, bucket_bytes
        self._timeout_seconds, self._host = timeout_seconds, host
        self._held: dict[int, tuple[PublishedWeights, dict[str, Tensor]]] = {}
        self._members: Membership = ()
        self._store: Any = None
        self._group: Any = None
        self._next: PublishedWeights | None = None
        self._sessions = self._transfers = 0
        self._called_off = ""

    def publish(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        *,
        base: PublishedWeights | None = None,
        changes: Sequence[LowRankChange] = (),
    ) -> PublishedWeights:
        """See `WeightCarrier.publish`."""
        manifest, delta = self._versions.next(manifest_of(version, tensors, base=base, changes=changes))
        # A copy in any case: the trained weights change while this version is still being handed out.
        own = download(tensors, copy=True)
        published = PublishedWeights(manifest=manifest, base=base, delta=delta)
        self._held[version] = (published, own)
        return published

    def keep_only(self, version: int) -> None:
        """See `WeightCarrier.keep_only`."""
        self._held = {number: held for number, held in self._held.items() if number in (version, BASE_VERSION)}

    def can_send(self, published: PublishedWeights) -> bool:
        """See `WeightCarrier.can_send`: it is kept."""
        return True

    def routes(
        self, published: PublishedWeights, servers: Sequence[ServerInstance], workers: Sequence[int]
    ) -> list[WeightRoute]:
        """See `WeightCarrier.routes`: ranks follow the order of `servers`."""
        members = tuple((server.incarnation, count) for server, count in zip(servers, workers, strict=True))
        world_size = 1 + sum(workers)
        if members != self._members or self._store is None:
            self._leave()
            self._store, self._port = open_store(
                self._host, world_size=world_size, timeout_seconds=self._timeout_seconds
            )
            self._members = members
            self._sessions += 1
        self._next, self._called_off = published, ""
        self._transfers += 1
        routes, rank = [], 1
        for count in workers:
            source = {
                "kind": "broadcast",
                "host": self._host,
                "port": self._port,
                "session": self._sessions,
                "transfer": self._transfers,
                "rank": rank,
                "world_size": world_size,
                "backend": self._backend,
                "bucket_bytes": self._bucket_bytes,
                "timeout_seconds": self._timeout_seconds,
            }
            routes.append(WeightRoute(source=source))
            rank += count
        return routes

    def send(self) -> None:
        """See `WeightCarrier.send`."""
        assert self._next is not None, "routes() comes before send()"
        _, tensors = self._held[self._next.manifest.version]
        entries = replace(self._next.manifest, entries=self._next.manifest.sent).to_json()["tensors"]
        world_size = 1 + sum(count for _, count in self._members)
        try:
            begin_transfer(
                self._store,
                self._transfers,
                ranks=range(1, world_size),
                called_off=lambda: self._called_off,
                timeout_seconds=self._timeout_seconds,
            )
        except RuntimeError as error:
            self._members = ()  # the store stays until the next transfer: who comes late is told there
            raise EngineError(f"broadcast of weights failed: {error}") from error
        try:
            if self._group is None:
                self._group = join_group(
                    self._store,
                    rank=0,
                    world_size=world_size,
                    backend=self._backend,
                    timeout_seconds=self._timeout_seconds,
                )
            for run in buckets(entries, self._bucket_bytes):
                self._send_run(run, tensors)
        except RuntimeError as error:
            self._leave()
            raise EngineError(f"broadcast of weights failed: {error}") from error

    def call_off(self, reason: str) -> None:
        """See `WeightCarrier.call_off`."""
        self._called_off = reason

    def sent(self) -> SentWeights:
        """See `WeightCarrier.sent`."""
        assert self._next is not None, "routes() comes before sent()"
        return sent_of(self._next.manifest)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._leave()
        self._held.clear()

    def _send_run(self, run: list[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
        import torch

        buffer = torch.empty(bucket_bytes(run), dtype=torch.uint8, device=self._device)
        torch._foreach_copy_(views(buffer, run), [tensors[entry["name"]] for entry in run])
        broadcast(self._group, buffer)

    def _leave(self) -> None:
        # Dropping the references is what ends a backend object; the next transfer meets at a new store.
        self._group = self._store = None
        self._members = ()
