"""Whole tensors from shards and shards from whole tensors, one tensor at a time.

Gathering is a joint act: every rank asks for the same tensors in the same order.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a sharded tensor, on every rank, without gradient; the tensor itself where it is not sharded."""
    detached = tensor.detach()
    if not isinstance(detached, DTensor):
        return detached
    with _expected_gathers():
        return on_device(detached).full_tensor()


def on_device(tensor: DTensor) -> DTensor:
    """A distributed tensor where its ranks communicate, if its parts are in host memory."""
    local = tensor.to_local()
    kind = tensor.device_mesh.device_type
    return tensor if local.device.type == kind else DTensor(local.to(kind), tensor._spec, requires_grad=False)


def whole_of_shard(shard: Tensor, like: Tensor) -> Tensor:
    """All of a tensor of which every rank has `shard`, sharded as `like` is, on the device of that."""
    found = as_sharded(shard, like)
    return whole(found) if isinstance(found, DTensor) else found.to(like.device)


def as_sharded(shard: Tensor, like: Tensor) -> Tensor:
    """`shard` as a part of a distributed tensor of the shape and placements of `like`; it stays on its device."""
    if not isinstance(like, DTensor):
        return shard.detach()
    # Not DTensor.from_local, which would move what is kept in host memory to the device.
    return DTensor(shard.detach(), like._spec, requires_grad=False)


def shard_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has, sharded as `like` is; without communication."""
    if not isinstance(like, DTensor):
        return tensor
    placed = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return placed.to_local()


@contextmanager
def _expected_gathers() -> Iterator[None]:
    """Parameters split by FSDP2 and tp along one dimension take two gathers; torch warns about each of them."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
