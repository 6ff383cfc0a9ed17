"""What a weight version consists of, computed from its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.api import TensorEntry, WeightManifest
from areal.utils.tensors import digests, dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def manifest_of(version: int, tensors: Mapping[str, Tensor]) -> WeightManifest:
    """Names, dtypes, shapes and digests, in the order of `tensors`."""
    found = digests(tensors)
    return WeightManifest(
        version=version,
        entries=tuple(
            TensorEntry(name=name, dtype=dtype_name(tensor), shape=tuple(tensor.shape), digest=found[name])
            for name, tensor in tensors.items()
        ),
    )
