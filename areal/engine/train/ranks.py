"""The processes that share one trained model, as its engine asks them, and the parts of tensors that each has.

A process that is alone is the only rank along every way of splitting: all questions have an answer without
communication, and torch.distributed is never used. A tensor that is not sharded is whole.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.models.adapter import Box
    from areal.models.parallel.meshes import Meshes

Value = TypeVar("Value")
_TORCH_LOGGER: Final = logging.getLogger("torch.distributed.tensor._redistribute")


class Ranks:
    """This process among those of its engine. Ways of splitting have the names of the fields of `Meshes`, e.g. "tp"."""

    def __init__(self, device: torch.device, meshes: Meshes | None = None) -> None:
        """device: where this process computes and communicates; meshes: None for a process that is alone."""
        self.device = device
        self.meshes = meshes

    @property
    def is_alone(self) -> bool:
        """Whether the model is not split, so that nobody has to be waited for."""
        return self.meshes is None

    @property
    def rank(self) -> int:
        """Of this process among all."""
        return 0 if self.meshes is None else dist.get_rank()

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 if self.meshes is None else dist.get_world_size()

    def count(self, way: str) -> int:
        """Ranks along one way of splitting."""
        return 1 if self.meshes is None else self.meshes.group(way).size()

    def place(self, way: str) -> int:
        """Place of this process among them."""
        return 0 if self.meshes is None else self.meshes.group(way).rank()

    def holders(self) -> tuple[tuple[int, bool], ...]:
        """Return of each rank its place among the data ranks, and whether it is the first of those with that place."""
        if self.meshes is None:
            return ((0, True),)
        mesh = self.meshes.root.mesh
        found: dict[int, tuple[int, bool]] = {}
        # The outermost dimension is pp, the two innermost are cp and tp, those between are "data" as one.
        for place, sharing in enumerate(mesh.reshape(mesh.shape[0], -1, mesh.shape[-2] * mesh.shape[-1]).unbind(1)):
            for number, rank in enumerate(sharing.flatten().tolist()):
                found[rank] = (place, number == 0)
        return tuple(found[rank] for rank in range(len(found)))

    def group(self, way: str) -> ProcessGroup:
        """Return the group of ranks along one way of splitting."""
        assert self.meshes is not None, "a process that is alone does not communicate"
        return self.meshes.group(way)

    def sum(self, tensor: Tensor, way: str) -> None:
        """Add up the tensors of the ranks, in place."""
        if self.meshes is not None:
            dist.all_reduce(tensor, group=self.meshes.group(way))

    def gather(self, value: Value, way: str | None = None) -> list[Value]:
        """Collect the objects of all ranks along `way`, or of all ranks, in their order."""
        if self.meshes is None:
            return [value]
        found: list[Any] = [None] * (self.size if way is None else self.count(way))
        dist.all_gather_object(found, value, group=None if way is None else self.meshes.group(way))
        return found

    def sent(self, value: Value, way: str, source: int) -> Value:
        """Send the object of the rank at place `source` of `way` to the others."""
        if self.count(way) == 1:
            return value
        found: list[Any] = [value]
        dist.broadcast_object_list(found, group=self.group(way), group_src=source)
        return found[0]

    def agree(self, *numbers: float) -> list[float]:
        """Return the same numbers on all ranks: of each the largest, NaN when any is not finite; alone as they are."""
        if self.meshes is None:
            return list(numbers)
        finite = [math.isfinite(number) for number in numbers]
        given = [number if good else 0.0 for number, good in zip(numbers, finite, strict=True)]
        found = torch.tensor([given, [float(not good) for good in finite]], dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        largest, wrong = found.tolist()
        return [math.nan if bad else number for number, bad in zip(largest, wrong, strict=True)]

    def failures(self, failure: str | None) -> dict[int, str]:
        """Collect the failures of all ranks, by rank; {} when there are none.

        A rank that raised its own error at once would leave the others waiting.
        """
        return {rank: message for rank, message in enumerate(self.gather(failure)) if message is not None}

    def on_first(self, work: Callable[[], None]) -> None:
        """Run `work` on rank 0; every rank raises its error."""
        outcome: list[Exception | None] = [None]
        if self.rank == 0:
            try:
                work()
            except Exception as error:
                if self.meshes is None:
                    raise
                outcome[0] = error
        if self.meshes is not None:
            dist.broadcast_object_list(outcome, src=0)
        if outcome[0] is not None:
            raise outcome[0]


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
    # Parameters split by FSDP2 and tp along one dimension take two gathers, of which torch warns.
    _TORCH_LOGGER.addFilter(_is_unexpected)
    try:
        return detached.full_tensor()
    finally:
        _TORCH_LOGGER.removeFilter(_is_unexpected)


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


def _is_unexpected(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
