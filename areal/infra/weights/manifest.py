"""What a weight version consists of, computed from its tensors, and what of it a server with the one before lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from areal.api import BASE_VERSION, EngineError, SentWeights, TensorEntry, WeightManifest
from areal.utils.tensors import digests, dtype_name, entry_bytes, listing_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.api import LowRankChange, PublishedWeights


def manifest_of(
    version: int,
    tensors: Mapping[str, Tensor],
    *,
    base: PublishedWeights | None = None,
    changes: Sequence[LowRankChange] = (),
) -> WeightManifest:
    """Names, dtypes, shapes and digests, in the order of `tensors`, which are better on the device they are trained on
    than copies of them: see `digests`. base, changes: see `WeightCarrier.publish`.

    Raises EngineError for changes of tensors that the base has not.
    """
    found = digests(tensors)
    entries = tuple(
        TensorEntry(name=name, dtype=dtype_name(tensor), shape=tuple(tensor.shape), digest=found[name])
        for name, tensor in tensors.items()
    )
    if version == BASE_VERSION:
        listing = WeightManifest(version=version, entries=entries).to_json()["tensors"]
        return WeightManifest(version=version, entries=entries, identity=listing_digest(listing))
    if base is None:
        return WeightManifest(version=version, entries=entries)
    known = {entry.name for entry in base.manifest.entries}
    unknown = [change.target for change in changes if change.target not in known]
    if unknown:
        raise EngineError(f"adapters change {unknown[0]}, which is not a tensor of the base ({len(known)} tensors)")
    return WeightManifest(version=version, entries=entries, base=base.manifest.identity, changes=tuple(changes))


def identity_of(manifest: WeightManifest) -> str:
    """Return by what servers that keep the version know it; "" when they do not keep it."""
    return listing_digest(manifest.to_json()["tensors"]) if manifest.keep else ""


def delta_of(manifest: WeightManifest, before: WeightManifest | None) -> WeightManifest | None:
    """Return the same version for servers that keep `before`; None when everything has changed, or nothing is kept."""
    if before is None or not manifest.keep or not before.keep:
        return None
    known = {entry.name: entry for entry in before.entries}
    changed = tuple(entry.name for entry in manifest.entries if known.get(entry.name) != entry)
    if len(changed) == len(manifest.entries):
        return None
    return replace(manifest, since=identity_of(before), changed=changed)


def sent_of(manifest: WeightManifest) -> SentWeights:
    """Return what a worker is sent of a version of which `manifest` lists the digests."""
    whole = sum(map(entry_bytes, manifest.to_json()["tensors"]))
    num_bytes = sum(map(entry_bytes, replace(manifest, entries=manifest.sent).to_json()["tensors"]))
    return SentWeights(identity=identity_of(manifest), num_bytes=num_bytes, skipped_bytes=whole - num_bytes)


class Versions:
    """Makes the manifests of a carrier. deltas: whether servers keep whole versions, so that the next one may go on
    top."""

    def __init__(self, *, deltas: bool) -> None:
        self._deltas = deltas
        self._before: WeightManifest | None = None

    def next(self, manifest: WeightManifest) -> tuple[WeightManifest, WeightManifest | None]:
        """Return a new version as it is to be announced, whole and on top of the one before if it can be."""
        if not self._deltas or manifest.version == BASE_VERSION or manifest.base:
            return manifest, None
        whole = replace(manifest, keep=True)
        delta = delta_of(whole, self._before)
        self._before = whole
        return whole, delta
