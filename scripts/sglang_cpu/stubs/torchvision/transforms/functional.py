"""See `torchvision`."""

from __future__ import annotations

from enum import Enum

from torchvision import missing as pil_to_tensor

__all__ = ["InterpolationMode", "pil_to_tensor"]


class InterpolationMode(Enum):
    """As in torchvision: tables of image processors are made of them at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
