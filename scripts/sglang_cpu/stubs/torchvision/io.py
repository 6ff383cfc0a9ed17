"""See `torchvision`."""

from __future__ import annotations

from enum import Enum

from torchvision import missing as decode_image
from torchvision import missing as decode_jpeg

__all__ = ["ImageReadMode", "decode_image", "decode_jpeg"]


class ImageReadMode(Enum):
    """As in torchvision."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4
