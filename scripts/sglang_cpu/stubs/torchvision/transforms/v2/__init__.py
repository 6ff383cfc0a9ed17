"""See `torchvision`."""

from __future__ import annotations

from torchvision.transforms.v2 import functional

__all__ = ["functional"]
