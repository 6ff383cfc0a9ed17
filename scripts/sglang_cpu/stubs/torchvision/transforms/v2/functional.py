"""See `torchvision`."""

from __future__ import annotations

from torchvision.transforms.functional import InterpolationMode

__all__ = ["InterpolationMode"]
