"""What a weight version consists of, computed from its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.api import BASE_VERSION, EngineError, TensorEntry, WeightManifest
from areal.utils.tensors import digests, dtype_name, listing_digest

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
    """Names, dtypes, shapes and digests, in the order of `tensors`. base, changes: see `WeightCarrier.publish`.

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
