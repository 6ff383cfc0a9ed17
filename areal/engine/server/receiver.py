"""Receives and verifies weight versions inside a worker process of an inference server.

Runs in the server's own environment, next to copies of `adapters`, `changes`, `areal.utils.tensors` and
`areal.utils.process_groups`: standard library, torch and safetensors only. It stages and verifies; the worker
puts the tensors into the model.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.engine.server.adapters import AdaptedWeights
from areal.engine.server.changes import KeptVersion
from areal.utils.process_groups import await_transfer, broadcast, connect_store, hear, join_group
from areal.utils.tensors import bucket_bytes, buckets, digests, dtype_name, listing_digest, views

if TYPE_CHECKING:
    from collections.abc import Mapping

LEASE_SECONDS: Final = 30.0
"""A trainer that has not been in contact for this long loses the server."""


class RefusedWeightsError(Exception):
    """The received tensors do not match the manifest; nothing was changed."""


class Lease:
    """Records which trainer owns a server; an active owner keeps other trainers out.

    An owner is a unique string; empty for a trainer that started the server itself, which nobody else knows.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._heard = 0.0

    def hear(self, owner: str) -> None:
        """Record contact with the owner; ignore others."""
        if owner and owner == self.owner:
            self._heard = time.monotonic()

    def take(self, owner: str) -> str:
        """Make `owner` the owner; return why that is refused, empty on success."""
        silent = time.monotonic() - self._heard
        if self.owner not in ("", owner) and silent < LEASE_SECONDS:
            return (
                f"it serves another trainer ({self.owner}, last contact {silent:.0f} s ago); stop that trainer or use "
                f"other servers"
            )
        self.owner = owner
        self.hear(owner)
        return ""

    def release(self, owner: str) -> None:
        """Release the server if `owner` holds it."""
        if owner == self.owner:
            self.owner = ""


class WeightReceiver:
    """Holds at most one staged version, verified against its manifest, and at most one base for adapters. The version
    in use is kept where its manifest says so, and later ones may send only what differs from it.

    A base is kept after versions on top of it were used. If it comes from a lasting file it is memory-mapped and shared
    by all workers of a machine; otherwise it is a copy in host memory. Only the owner of the lease may stage.
    """

    def __init__(self, *, worker_index: int, device: torch.device) -> None:
        """Create a receiver. worker_index: among the workers of its server, from 0. device: that of this worker's
        model."""
        self._worker_index, self._device = worker_index, device
        self._staged: tuple[dict[str, Any], Mapping[str, torch.Tensor]] | None = None
        self._kept = KeptVersion()
        self.lease = Lease()
        self._base: dict[str, torch.Tensor] = {}
        self._identity = ""
        self._group: Any = None
        self._store: Any = None
        self._stream_store: Any = None
        self._collectors: dict[int, Any] = {}
        self._digests: dict[str, str] = {}
        self._session: tuple[Any, ...] = ()
        self._stream_session: tuple[Any, ...] = ()

    @property
    def base(self) -> str:
        """Identity of the base held; empty without one."""
        return self._identity

    def stage(self, manifest: dict[str, Any], source: dict[str, Any], *, owner: str = "") -> None:
        """Fetch all tensors and compare them with the manifest. Raises RefusedWeightsError; nothing is staged then.

        A base is kept separately from versions until it is replaced. owner: see `Lease`.
        """
        problem = self.lease.take(owner)
        if problem:
            raise RefusedWeightsError(problem)
        self._staged = None
        if manifest.get("base", "") not in ("", self._identity):
            raise RefusedWeightsError(
                f"version {manifest['version']} is adapters on top of base {manifest['base']}, but the base here is "
                f"{self._identity or 'none'}"
            )
        streamed = source["kind"] == "shards"
        if manifest.get("since"):
            self._require_kept(manifest | {"tensors": []} if streamed else manifest)
        tensors = self._fetch(manifest if streamed else _travelling(manifest), source)
        if streamed:
            manifest = self._with_digests(manifest) | {"changed": list(tensors)}
            if manifest.get("since"):
                self._require_kept(manifest)
        travelling = _travelling(manifest)
        verify(travelling, tensors)
        # In the order of the manifest: a file has its own.
        ordered = {entry["name"]: tensors[entry["name"]] for entry in travelling["tensors"]}
        if manifest.get("identity"):
            self._keep(manifest, ordered, lasting=source.get("lasting", source["kind"] != "file"))
            return
        self._staged = (manifest, self._on_base(manifest, ordered))
        self.lease.hear(owner)  # nobody else could be heard meanwhile

    def take(self, version: int) -> Mapping[str, torch.Tensor]:
        """Return the staged model and forget it; `AdaptedWeights` if it consists of adapters on top of the base,
        `WholeVersion` if it is kept.

        Raises RefusedWeightsError for another version.
        """
        staged, self._staged = self._staged, None
        if staged is None or int(staged[0]["version"]) != version:
            held = "none" if staged is None else f"version {staged[0]['version']}"
            raise RefusedWeightsError(f"version {version} was to be switched to, but {held} is staged")
        manifest, tensors = staged
        if manifest.get("keep"):
            return self._kept.put(manifest, tensors)
        self._kept.forget()
        return tensors

    def discard(self) -> None:
        """Forget the staged version."""
        self._staged = None

    def _require_kept(self, manifest: dict[str, Any]) -> None:
        problems = self._kept.problems(manifest)
        if problems:
            raise RefusedWeightsError(f"changes of version {manifest['version']} do not fit: {problems[0]}")

    def _fetch(self, manifest: dict[str, Any], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        if source["kind"] == "file":
            return self._from_file(manifest, source)
        if source["kind"] == "broadcast":
            return self._from_broadcast(manifest, source)
        if source["kind"] == "shards":
            return self._from_shards(manifest, source)
        raise RefusedWeightsError(f"unknown kind of weight transfer {source['kind']!r}")

    def _keep(self, manifest: dict[str, Any], tensors: dict[str, torch.Tensor], *, lasting: bool) -> None:
        if listing_digest(manifest["tensors"]) != manifest["identity"]:
            raise RefusedWeightsError(f"base {manifest['identity']} is not what its list of tensors says")
        # A mapped file that is removed on another machine would take this process with it.
        self._base = tensors if lasting else {name: tensor.clone() for name, tensor in tensors.items()}
        self._identity = manifest["identity"]

    def _on_base(self, manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if not manifest.get("base"):
            return tensors
        adapted = AdaptedWeights(
            self._base, identity=self._identity, factors=tensors, changes=list(manifest["changes"])
        )
        problems = adapted.problems()
        if problems:
            raise RefusedWeightsError(f"adapters of version {manifest['version']} do not fit the base: {problems[0]}")
        return adapted

    def _from_file(self, manifest: dict[str, Any], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load_file

        try:
            if manifest.get("since"):
                with safe_open(source["path"], framework="pt") as file:
                    return {entry["name"]: file.get_tensor(entry["name"]) for entry in manifest["tensors"]}
            loaded: dict[str, torch.Tensor] = load_file(source["path"])
        except (OSError, SafetensorError) as error:
            raise RefusedWeightsError(f"cannot read {source['path']}: {error}") from error
        return loaded

    def _from_broadcast(self, manifest: dict[str, Any], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        on_device = source["backend"] == "nccl"
        tensors: dict[str, torch.Tensor] = {}
        try:
            group = self._join(source)
            for run in buckets(manifest["tensors"], source["bucket_bytes"]):
                buffer = torch.empty(
                    bucket_bytes(run), dtype=torch.uint8, device=self._device if on_device else torch.device("cpu")
                )
                broadcast(group, buffer)
                # Staged on the host: the device has no room for a second copy of a large model.
                host = buffer.to("cpu")
                tensors |= {entry["name"]: view for entry, view in zip(run, views(host, run), strict=True)}
        except RuntimeError as error:
            self._group, self._session = None, ()
            raise RefusedWeightsError(f"broadcast of weights failed: {error}") from error
        return tensors

    def _from_shards(self, manifest: dict[str, Any], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Receive a stream from the trainer's ranks; each bucket comes from the rank that collected it.

        What the digests are is known only once everything was sent: they follow, see `_with_digests`.
        """
        entries = {entry["name"]: entry for entry in manifest["tensors"]}
        device = self._device if source["backend"] == "nccl" else torch.device("cpu")
        tensors: dict[str, torch.Tensor] = {}
        self._digests = {}
        try:
            self._meet_streams(source)
            first = self._collector(0, source)
            _require_success(json.loads(hear(first, device)))
            for bucket in source["buckets"]:
                run = [entries[name] for name in bucket["names"]]
                if manifest.get("since") and not self._follows(bucket, source, device):
                    continue
                buffer = torch.empty(bucket_bytes(run), dtype=torch.uint8, device=device)
                broadcast(self._collector(bucket["collector"], source), buffer)
                host = buffer.to("cpu")
                tensors |= {entry["name"]: view for entry, view in zip(run, views(host, run), strict=True)}
            end = json.loads(hear(first, device))
            _require_success(end)
            self._digests = end["digests"]
        except (RuntimeError, ValueError, KeyError) as error:
            self._collectors, self._stream_session = {}, ()
            raise RefusedWeightsError(f"the stream of weights failed: {error}") from error
        except RefusedWeightsError:
            self._collectors, self._stream_session = {}, ()
            raise
        return tensors

    def _follows(self, bucket: dict[str, Any], source: dict[str, Any], device: torch.device) -> bool:
        """Return whether a bucket is sent at all."""
        told = torch.zeros(1, dtype=torch.uint8, device=device)
        broadcast(self._collector(bucket["collector"], source), told)
        return bool(told.item())

    def _with_digests(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest with the digests that followed the stream."""
        lacking = [entry["name"] for entry in manifest["tensors"] if entry["name"] not in self._digests]
        if lacking:
            raise RefusedWeightsError(f"no digest of {lacking[0]} followed the stream of weights")
        tensors = [entry | {"digest": self._digests[entry["name"]]} for entry in manifest["tensors"]]
        return manifest | {"tensors": tensors}

    def _meet_streams(self, source: dict[str, Any]) -> None:
        """Wait for the trainer's ranks. Raises RuntimeError when they do not send."""
        session = (source["host"], source["port"], source["session"])
        if session != self._stream_session:
            self._collectors, self._stream_session = {}, session
            self._stream_store = _connected(source)
        await_transfer(self._stream_store, source["transfer"], rank=source["rank"] + self._worker_index)

    def _collector(self, index: int, source: dict[str, Any]) -> Any:
        """Return the group of one of the trainer's collectors and all workers; joined when it is first needed."""
        if index not in self._collectors:
            self._collectors[index] = join_group(
                self._stream_store,
                rank=source["rank"] + self._worker_index,
                world_size=source["world_size"],
                backend=source["backend"],
                timeout_seconds=source["timeout_seconds"],
                name=f"collector-{index}",
            )
        return self._collectors[index]

    def _join(self, source: dict[str, Any]) -> Any:
        """Return the group of the trainer and all workers, once all are there."""
        session, rank = (source["host"], source["port"], source["session"]), source["rank"] + self._worker_index
        if session != self._session:
            self._group, self._store, self._session = None, _connected(source), session
        await_transfer(self._store, source["transfer"], rank=rank)
        if self._group is None:
            self._group = join_group(
                self._store,
                rank=rank,
                world_size=source["world_size"],
                backend=source["backend"],
                timeout_seconds=source["timeout_seconds"],
            )
        return self._group


def _connected(source: dict[str, Any]) -> Any:
    """Return the store at which the members of a transfer meet."""
    return connect_store(
        source["host"], source["port"], world_size=source["world_size"], timeout_seconds=source["timeout_seconds"]
    )


def _travelling(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of the tensors that are sent."""
    if not manifest.get("since"):
        return manifest
    names = set(manifest["changed"])
    return manifest | {"tensors": [entry for entry in manifest["tensors"] if entry["name"] in names]}


def _require_success(message: dict[str, Any]) -> None:
    if "failed" in message:
        raise RefusedWeightsError(f"the trainer gave the stream of weights up: {message['failed']}")


def verify(manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Check that the tensors equal the manifest byte for byte. Raises RefusedWeightsError naming the first few
    problems."""
    expected = {entry["name"]: entry for entry in manifest["tensors"]}
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} was not announced" for name in tensors if name not in expected]
    if not problems:
        for name, tensor in tensors.items():
            entry = expected[name]
            if list(tensor.shape) != list(entry["shape"]) or dtype_name(tensor) != entry["dtype"]:
                problems.append(
                    f"{name} is {dtype_name(tensor)} {list(tensor.shape)}, announced {entry['dtype']} {entry['shape']}"
                )
    if not problems:
        announced = {name: entry["digest"] for name, entry in expected.items()}
        found = digests(tensors, announced)
        problems = [f"{name} has other bytes than announced" for name in tensors if found[name] != announced[name]]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise RefusedWeightsError(
            f"weights of version {manifest['version']} are not what was announced: {'; '.join(problems[:5])}{more}"
        )
