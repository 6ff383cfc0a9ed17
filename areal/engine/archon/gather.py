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
        return detached.full_tensor()


def whole_of_shard(shard: Tensor, like: Tensor) -> Tensor:
    """All of a tensor of which every rank has `shard`, sharded as `like` is."""
    if not isinstance(like, DTensor):
        return shard.detach()
    return whole(as_sharded(shard, like))


def as_sharded(shard: Tensor, like: Tensor) -> Tensor:
    """`shard` as a part of a distributed tensor of the shape and placements of `like`."""
    if not isinstance(like, DTensor):
        return shard.detach()
    return DTensor.from_local(
        shard.detach(),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


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
