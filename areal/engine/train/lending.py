"""Moves what a learner has on its device to host memory and back, so that inference servers may have the device.

    lent = LentMemory(device, lambda: engine.device_tensors())
    lent.give()        # everything is in host memory; checkpoints and weights are read from there
    lent.take_back()   # bit for bit as it was

Tensors stay the same objects, and those that share memory go on sharing it. Host buffers are allocated once, locked
where an accelerator copies to and from them. For a process that has the whole model: shards of several ranks are tied
to their memory by FSDP2.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

import torch

from areal.api import EngineError
from areal.utils.transfers import WHOLE_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


class DeviceMemory(Protocol):
    """Where tensors live while the learner works."""

    def allocate(self, num_bytes: int) -> Tensor:
        """Return so many bytes, uint8, on the device."""
        ...

    def freed(self, num_bytes: int) -> None:
        """Note that so many bytes are referenced by nobody any more."""
        ...

    def settle(self) -> None:
        """Wait for copies, and give what is unused to other processes."""
        ...

    def held(self) -> int:
        """Bytes that this process has of the device."""
        ...


class TorchDevice:
    """`DeviceMemory` of a device of torch. On the CPU, where nothing is scarce, `held` counts what was given here."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._held = device, 0

    def allocate(self, num_bytes: int) -> Tensor:
        """See `DeviceMemory`."""
        self._held += num_bytes
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def freed(self, num_bytes: int) -> None:
        """See `DeviceMemory`."""
        self._held -= num_bytes

    def settle(self) -> None:
        """See `DeviceMemory`."""
        if self._device.type == "cuda":
            with WHOLE_DEVICE:
                torch.cuda.synchronize(self._device)
                torch.cuda.empty_cache()

    def held(self) -> int:
        """See `DeviceMemory`: with CUDA all that torch has allocated, whoever asked for it."""
        return torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else max(0, self._held)


class LentMemory:
    """See the module. tensors: returns all that is to move, found anew each time, for moments come with the first
    step."""

    def __init__(
        self, device: torch.device, tensors: Callable[[], Iterable[Tensor]], *, memory: DeviceMemory | None = None
    ) -> None:
        self._device, self._tensors = device, tensors
        self._memory = memory or TorchDevice(device)
        self._spare: dict[int, list[Tensor]] = defaultdict(list)
        """Host buffers that are not in use, by size."""
        self._lent: list[tuple[Tensor, list[Tensor]]] = []
        """Host buffer, and the tensors that are in it."""
        self.is_lent = False
        self.moved_bytes = 0
        """In host memory now, or when it was last lent."""

    def give(self) -> None:
        """Move everything to host memory. Raises EngineError when it is there already."""
        if self.is_lent:
            raise EngineError("the learner's memory is lent already; take it back first")
        self.is_lent = True
        shared: dict[int, list[Tensor]] = defaultdict(list)
        for tensor in self._tensors():
            if tensor.device == self._device and tensor.untyped_storage().nbytes():
                shared[tensor.untyped_storage().data_ptr()].append(tensor)
        self.moved_bytes = 0
        for tensors in shared.values():
            num_bytes = tensors[0].untyped_storage().nbytes()
            self._lent.append((self._to_host(tensors, num_bytes), tensors))
            self.moved_bytes += num_bytes
            self._memory.freed(num_bytes)
        self._memory.settle()

    def take_back(self) -> None:
        """Move everything back. Raises EngineError when nothing is lent."""
        if not self.is_lent:
            raise EngineError("the learner has its memory; there is nothing to take back")
        for host, tensors in self._lent:
            buffer = self._memory.allocate(host.nbytes)
            buffer.copy_(host, non_blocking=host.is_pinned())
            _put(tensors, buffer)
        self._memory.settle()
        for host, _ in self._lent:
            self._spare[host.nbytes].append(host)
        self._lent, self.is_lent = [], False

    @property
    def staying_bytes(self) -> int:
        """What this process has of the device now."""
        return self._memory.held()

    def _to_host(self, tensors: list[Tensor], num_bytes: int) -> Tensor:
        free = self._spare[num_bytes]
        pinned = self._device.type == "cuda"
        host = free.pop() if free else torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        storage = tensors[0].untyped_storage()
        host.copy_(torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage, 0, (num_bytes,), (1,)))
        _put(tensors, host)
        return host


@torch.no_grad()
def _put(tensors: Iterable[Tensor], buffer: Tensor) -> None:
    """Have tensors read their values from a buffer of bytes, each at the place that it had in its own."""
    for tensor in tensors:
        view = torch.empty(0, dtype=tensor.dtype, device=buffer.device)
        view.set_(buffer.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = view
