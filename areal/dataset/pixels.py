"""Decodes files of images: what a file declares is checked before it costs anything, and nothing is fetched.

    picture = decode_image(content, ImageLimits())   # a Pillow image in RGB, upright, opaque
    image = image_of(numpy.asarray(picture))         # its pixels with their digest, once it has its final size

In this order: size of the file, format by its content, declared pixels, decoding, number of frames, orientation,
colours. Every refusal is a DataError that says what was found. Transparent parts become white; greys of 16 bits are
scaled by their range, which Pillow by itself would cut off at 255.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError, Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS: Final = ("GIF", "JPEG", "PNG", "WEBP")
MAX_ASPECT_RATIO: Final = 200
"""Image processors refuse images that are longer than this many times their other side."""
_GREY_RANGE: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What a file may be."""

    max_file_bytes: int = 32 * 2**20
    max_file_pixels: int = 2**25
    """Height times width, as the file declares them; they bound the memory of decoding, about 32 bytes a pixel."""
    first_frame: bool = False
    """Take the first frame of films instead of refusing them."""


def decode_image(content: bytes, limits: ImageLimits) -> Any:
    """Return the image as a Pillow image of mode RGB. Raises DataError."""
    from PIL import Image as Pillow
    from PIL import ImageOps

    if len(content) > limits.max_file_bytes:
        raise DataError(f"a file of {len(content)} bytes, at most {limits.max_file_bytes} are decoded")
    try:
        image: Any = Pillow.open(io.BytesIO(content), formats=FORMATS)
        _check_declared(image, limits)
        image.load()
        image = _rgb(image)
        ImageOps.exif_transpose(image, in_place=True)
        return image
    except DataError:
        raise
    # Decoders and readers of EXIF data raise whatever a broken file brings about.
    except Exception as error:
        raise DataError(
            f"starts with {content[:8]!r} and cannot be decoded as PNG, JPEG, GIF or WebP: {error}"
        ) from error


def image_of(pixels: NDArray[Any]) -> Image:
    """Return pixels uint8 [H, W, 3] at their final size with their digest; they are copied, and read-only."""
    own = pixels.copy(order="C")
    own.flags.writeable = False
    height, width = own.shape[:2]
    size = height.to_bytes(8, "little") + width.to_bytes(8, "little")
    return Image(digest=hashlib.sha256(size + own.tobytes()).hexdigest(), pixels=own)


def _check_declared(image: Any, limits: ImageLimits) -> None:
    """Raise DataError for what is not worth decoding."""
    width, height = image.size
    if width * height > limits.max_file_pixels:
        raise DataError(f"{width} x {height} pixels, at most {limits.max_file_pixels} are decoded")
    if min(width, height) < 1 or max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise DataError(f"{width} x {height} pixels: one side is over {MAX_ASPECT_RATIO} times the other")
    if getattr(image, "is_animated", False) and not limits.first_frame:
        raise DataError(f"{image.n_frames} frames; films are not read (vision.first_frame takes the first)")


def _rgb(image: Any) -> Any:
    """Colours as RGB on white, with the EXIF data that says which side is up."""
    import numpy as np
    from PIL import Image as Pillow

    exif = image.getexif()
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        found = Pillow.fromarray(((grey * 255 + _GREY_RANGE // 2) // _GREY_RANGE).clip(0, 255).astype(np.uint8))
        found = found.convert("RGB")
    elif image.has_transparency_data:
        colours = image.convert("RGBA")
        found = Pillow.new("RGBA", colours.size, (255, 255, 255, 255))
        found.alpha_composite(colours)
        found = found.convert("RGB")
    else:
        found = image.convert("RGB")
    found.info.pop("exif", None)
    found.getexif().update(exif)
    return found
