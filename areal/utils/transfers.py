"""What crosses between the host and an accelerator, with as little waiting as there can be.

An accelerator works through a queue, and is fast as long as the host keeps it filled. A copy from ordinary memory, and
every number that is read, makes the host wait until the queue is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on `device`, to which it is copied while the host goes on; a tensor that is there
    already as it is."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def download(tensors: Mapping[str, Tensor], *, copy: bool = False) -> dict[str, Tensor]:
    """Return contiguous tensors of the host, waiting once for all of them. copy: also of those that are there."""
    import torch

    host: dict[str, Tensor] = {}
    away = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_cuda}
    for name, tensor in tensors.items():
        if name in away:
            host[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        else:
            host[name] = tensor.detach().to("cpu", copy=copy, memory_format=torch.contiguous_format).contiguous()
    if away:
        torch._foreach_copy_([host[name] for name in away], list(away.values()), non_blocking=True)
        torch.cuda.synchronize(next(iter(away.values())).device)
    return host


def read_together(numbers: Sequence[Tensor]) -> list[float]:
    """Return the values of tensors of one number each, through float64, in one read."""
    import torch

    found: list[float] = torch.stack([number.detach().double() for number in numbers]).tolist() if numbers else []
    return found
