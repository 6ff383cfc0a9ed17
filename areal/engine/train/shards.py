"""Whole tensors from shards and shards from whole tensors, one tensor at a time. A tensor that is not sharded is whole.

Gathering is collective: every rank asks for the same tensors in the same order.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.models.adapter_rows import Box


def local_data(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory, without gradient."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def box_of(tensor: Tensor) -> Box:
    """Which part of a tensor this rank has, one slice for each dimension."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    sizes, starts = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    assert sizes == tuple(tensor.to_local().shape), "every way of splitting cuts one run of each dimension"
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def whole(tensor: Tensor) -> Tensor:
    """All of a sharded tensor, on every rank, without gradient; the live tensor itself where it is not sharded."""
    detached = tensor.detach()
    if not isinstance(detached, DTensor):
        return detached
    local, kind = detached.to_local(), detached.device_mesh.device_type
    if local.device.type != kind:  # kept in host memory, where ranks do not communicate
        detached = DTensor(local.to(kind), detached._spec, requires_grad=False)
    with _expected_gathers():
        return detached.full_tensor()


def as_sharded(shard: Tensor, like: Tensor) -> Tensor:
    """`shard` as a part of a distributed tensor of the shape and placements of `like`; it stays on its device."""
    if not isinstance(like, DTensor):
        return shard.detach()
    # Not DTensor.from_local, which would move what is kept in host memory to the device.
    return DTensor(shard.detach(), like._spec, requires_grad=False)


def shard_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Cut this rank's part out of a whole tensor, sharded as `like` is; without communication."""
    if not isinstance(like, DTensor):
        return tensor
    placed = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return placed.to_local()


@contextmanager
def _expected_gathers() -> Iterator[None]:
    """Silence a warning: parameters split by FSDP2 and tp along one dimension take two gathers."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
