"""Contracts between an inference engine whose servers are processes of their own, and what keeps those alive and
carries weights to them. Engines talk to servers; processes and carriers are `areal.infra`; a trainer brings them
together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInstance:
    """One life of one server. A restarted server is another instance, even at the same address.

    Example: `ServerInstance(name="vllm-0", incarnation="9f31c2ab", url="http://127.0.0.1:41733")`.
    """

    name: str
    """Place in the fleet; survives restarts."""
    incarnation: str
    """New at every start; the server knows its own, so that an answer of a stale process is recognised."""
    url: str


class ServerListener(Protocol):
    """What a pool tells the engine that uses its servers. Called from the pool's threads."""

    def server_up(self, server: ServerInstance) -> None:
        """Bring a server that answers its health check to the current weights; send it requests.

        Whatever is raised counts as a failed start.
        """
        ...

    def server_down(self, server: ServerInstance, reason: str) -> None:
        """Note that a server died, hangs or was evicted: nothing more will come from it. It may be started again."""
        ...

    def server_draining(self, server: ServerInstance) -> None:
        """Send a server no further requests and return once it has none left, or after a limit of the listener's."""
        ...

    def server_retired(self, name: str, reason: str) -> None:
        """Note that a server used up its restarts and stays down; `server_up` may follow where somebody else starts
        servers."""
        ...


class ServerPool(Protocol):
    """Keeps servers alive, or watches those that somebody else keeps alive."""

    @property
    def size(self) -> int:
        """Number of servers, whatever their state."""
        ...

    @property
    def may_grow(self) -> bool:
        """Whether servers that are not known yet may join."""
        ...

    def start(self, listener: ServerListener) -> None:
        """Start all servers and return; `listener` is notified of each when it is up."""
        ...

    def evict(self, server: ServerInstance, reason: str) -> None:
        """Give up this instance, although it may look alive: it is killed, and started again while restarts are left;
        one that somebody else started is only left alone for a while.

        Returns at once; a no-op when the instance is gone already.
        """
        ...

    def close(self) -> None:
        """End all servers and wait for it. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a weight version."""

    name: str
    """As in a Hugging Face checkpoint."""
    dtype: str
    """Without the prefix, e.g. "bfloat16"."""
    shape: tuple[int, ...]
    digest: str
    """Of the bytes, row-major; see `areal.utils.tensors.digest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankChange:
    """One tensor of a base as adapters change it: tensor + (up @ down) * scale, computed in float32."""

    target: str
    """Which tensor, as in a Hugging Face checkpoint."""
    down: str
    """Name of the factor [rank, inputs] among the tensors of the version."""
    up: str
    """Name of the factor [outputs, rank]."""
    scale: float
    transposed: bool = False
    """Whether the base stores the target as [inputs, outputs]."""
    dtype: str = "float32"
    """What the sum is rounded to."""


BASE_VERSION: Final = -1
"""In the place of a version: what adapters go on top of, which is never used by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """What a weight version consists of: the receiver accepts exactly this or nothing.

    A version is whole, or low-rank factors that change some tensors of a base.
    """

    version: int
    """BASE_VERSION for a base."""
    entries: tuple[TensorEntry, ...]
    identity: str = ""
    """Of a base: a digest over all entries, by which servers know it."""
    base: str = ""
    """Identity of the base this goes on top of; empty when it is whole."""
    changes: tuple[LowRankChange, ...] = ()
    """What becomes of tensors of the base; the others stay."""
    keep: bool = False
    """Whether servers keep the version, so that a later one may go on top of it."""
    since: str = ""
    """Identity of the kept version that this one goes on top of; empty when all tensors travel."""
    changed: tuple[str, ...] = ()
    """With since, the tensors that travel; the others are those of that version."""

    @property
    def sent(self) -> tuple[TensorEntry, ...]:
        """The tensors that travel."""
        names = set(self.changed)
        return tuple(entry for entry in self.entries if entry.name in names) if self.since else self.entries

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they travel to a server."""
        content: dict[str, Any] = {
            "version": self.version,
            "tensors": [
                {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape), "digest": entry.digest}
                for entry in self.entries
            ],
        }
        if self.identity:
            content["identity"] = self.identity
        if self.base:
            content |= {"base": self.base, "changes": [asdict(change) for change in self.changes]}
        if self.keep:
            content["keep"] = True
        if self.since:
            content |= {"since": self.since, "changed": list(self.changed)}
        return content

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WeightManifest:
        """Inverse of `to_json`."""
        return cls(
            version=int(value["version"]),
            entries=tuple(
                TensorEntry(name=item["name"], dtype=item["dtype"], shape=tuple(item["shape"]), digest=item["digest"])
                for item in value["tensors"]
            ),
            identity=value.get("identity", ""),
            base=value.get("base", ""),
            changes=tuple(LowRankChange(**item) for item in value.get("changes", ())),
            keep=bool(value.get("keep", False)),
            since=value.get("since", ""),
            changed=tuple(value.get("changed", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRoute:
    """How one server gets the tensors of a published version."""

    source: Mapping[str, Any] = field(default_factory=dict)
    """Plain values for the server's worker, e.g. {"kind": "file", "path": "/dev/shm/areal-7/5.safetensors"}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """A version that a carrier holds ready."""

    manifest: WeightManifest
    folder: Path | None = None
    """Checkpoint-like folder with the tensors, for servers that load from disk by themselves; None without one."""
    base: PublishedWeights | None = None
    """What a server must have before it can take this; None when it is whole."""
    delta: WeightManifest | None = None
    """The same version for servers that keep the one before (`since`); None where all tensors have to travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentWeights:
    """What one worker of each server was sent."""

    identity: str
    """By which servers know the version, when they keep it; "" when they do not."""
    num_bytes: int
    """Of the tensors that travelled."""
    skipped_bytes: int = 0
    """Of those that the servers had."""


class WeightCarrier(Protocol):
    """Brings weight versions to servers. Published versions are held until `keep_only` names another, or `close`."""

    def publish(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        *,
        base: PublishedWeights | None = None,
        changes: Sequence[LowRankChange] = (),
    ) -> PublishedWeights:
        """Take over a version (Hugging Face names); the tensors are copied, and may change afterwards.

        version: BASE_VERSION for what adapters go on top of. base, changes: of a version that is adapters; `tensors`
        are then their factors. Raises EngineError when it cannot; earlier versions stay.
        """
        ...

    def keep_only(self, version: int) -> None:
        """Let go of all versions but this one; a base stays."""
        ...

    def can_send(self, published: PublishedWeights) -> bool:
        """Whether the version can be sent now: not if it is kept nowhere and training has gone on."""
        ...

    def routes(
        self, published: PublishedWeights, servers: Sequence[ServerInstance], workers: Sequence[int]
    ) -> list[WeightRoute]:
        """How each of `servers` gets a published version in the `send` that follows.

        workers: model processes behind each server; every one of them receives all tensors.
        """
        ...

    def send(self) -> None:
        """Do this side's part while the servers of the last `routes` receive; returns when they have everything.

        Raises EngineError when they do not take it.
        """
        ...

    def call_off(self, reason: str) -> None:
        """Say, from another thread, that a server of the last `routes` does not take part.

        A `send` that still waits for servers then raises EngineError with the reason, and the others refuse with it.
        """
        ...

    def sent(self) -> SentWeights:
        """Return what the last `send` that succeeded was."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...
