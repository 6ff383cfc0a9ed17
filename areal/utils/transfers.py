"""What crosses between the host and an accelerator, with as little waiting as there can be.

An accelerator works through a queue, and is fast as long as the host keeps it filled. A copy from ordinary memory, and
every number that is read, makes the host wait until the queue is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on `device`, to which it is copied while the host goes on; a tensor that is there
    already as it is."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def read_together(numbers: Sequence[Tensor]) -> list[float]:
    """Return the values of tensors of one number each, through float64, in one read."""
    import torch

    found: list[float] = torch.stack([number.detach().double() for number in numbers]).tolist() if numbers else []
    return found
