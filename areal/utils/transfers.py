"""What crosses between the host and an accelerator, with as little waiting as there can be.

An accelerator works through a queue, and is fast as long as the host keeps it filled. A copy from ordinary memory, and
every number that is read, makes the host wait until the queue is empty.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

_logger = getLogger(__name__)
_PINNED_BYTES: Final = 64 * 2**20

WHOLE_DEVICE: Final = threading.Lock()
"""Held while a thread waits for all streams of a device, and while one captures a graph: CUDA lets nobody wait for a
stream that is being captured."""


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on `device`, to which it is copied while the host goes on; a tensor that is there
    already as it is."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def download(tensors: Mapping[str, Tensor], *, copy: bool = False) -> dict[str, Tensor]:
    """Return contiguous tensors of the host, waiting once for all small ones. copy: also of those that are there."""
    import torch

    host: dict[str, Tensor] = {}
    away = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_cuda}
    pinned = _pinned_for(away)
    for name, tensor in tensors.items():
        if name in pinned:
            host[name] = pinned[name]
        else:
            host[name] = tensor.detach().to("cpu", copy=copy, memory_format=torch.contiguous_format).contiguous()
    if pinned:
        torch._foreach_copy_(list(pinned.values()), [away[name] for name in pinned], non_blocking=True)
        with WHOLE_DEVICE:
            torch.cuda.synchronize(away[next(iter(pinned))].device)
    return host


def _pinned_for(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return memory that an accelerator writes to by itself, for the smallest tensors, up to `_PINNED_BYTES` together.

    Large ones are worth a wait each: memory of this kind cannot be moved to disk, and torch never gives it back.
    """
    import torch

    found: dict[str, Tensor] = {}
    left = _PINNED_BYTES
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].nbytes):
        left -= tensor.nbytes
        if left < 0:
            break
        try:
            found[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        except RuntimeError as error:
            _logger.debug("no pinned memory, so tensors are copied one by one: %s", error)
            break
    return found


def read_together(numbers: Sequence[Tensor]) -> list[float]:
    """Return the values of tensors of one number each, through float64, in one read."""
    import torch

    found: list[float] = torch.stack([number.detach().double() for number in numbers]).tolist() if numbers else []
    return found
