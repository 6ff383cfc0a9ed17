"""Decodes files of images: what a file declares is checked before it costs anything, and nothing is fetched.

    picture = decode_image(content, ImageLimits())   # a Pillow image in RGB, upright, opaque
    image = image_of(numpy.asarray(picture))         # its pixels with their digest, once it has its final size
    declared_size(content, ImageLimits())            # height and width of `picture`, without decoding
    files = FinalImages(ImageLimits(), vision.fit)   # both steps in threads, once however many ask

In this order: size of the file, format by its content, declared pixels, decoding, number of frames, orientation,
colours. Every refusal is a DataError that says what was found. Transparent parts become white; greys of 16 bits are
scaled by their range, which Pillow by itself would cut off at 255.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError, Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

FORMATS: Final = ("GIF", "JPEG", "PNG", "WEBP")
MAX_ASPECT_RATIO: Final = 200
"""Image processors refuse images that are longer than this many times their other side."""
_GREY_RANGE: Final = 65535
_ORIENTATION: Final = 0x0112
_SIDEWAYS: Final = frozenset({5, 6, 7, 8})
"""Values of the EXIF field `Orientation` of images that lie on their side."""
_EXIF_OF_PNG: Final = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
_IMAGES_KEPT: Final = 256
_THREADS: Final = 2


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
    from PIL import ImageOps

    with _explained(content):
        image = _opened(content, limits)
        image.load()
        image = _rgb(image)
        ImageOps.exif_transpose(image, in_place=True)
        return image


def declared_size(content: bytes, limits: ImageLimits) -> tuple[int, int]:
    """Return the height and width that `decode_image` would give, from what the file declares. Raises DataError.

    A file that is broken behind its header is not found out.
    """
    with _explained(content):
        image = _opened(content, limits)
        width, height = image.size
        # The whole of a PNG would be decoded to look for EXIF data behind its pixels.
        if image.format == "PNG" and not any(mark in content for mark in _EXIF_OF_PNG):
            return height, width
        sideways = image.getexif().get(_ORIENTATION) in _SIDEWAYS
        return (width, height) if sideways else (height, width)


class FinalImages:
    """Files as images of their final size. Serves threads and event loops alike."""

    def __init__(self, limits: ImageLimits, fit: Callable[[Any], Any]) -> None:
        """fit: resizes a Pillow image, once and for good (`areal.models.vision.VisionFormat.fit`)."""
        self.num_decoded = 0
        """Files that were decoded so far."""
        self.limits = limits
        self._fit = fit
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")
        self._recent: OrderedDict[bytes, Future[Image]] = OrderedDict()
        self._lock = Lock()

    def submit(self, content: bytes) -> Future[Image]:
        """Return the image that a thread makes of a file; a recent one is the same object. It raises DataError."""
        key = hashlib.sha256(content).digest()
        with self._lock:
            found = self._recent.get(key)
            if found is None:
                found = self._recent[key] = self._threads.submit(self._final, content)
                if len(self._recent) > _IMAGES_KEPT:
                    self._recent.popitem(last=False)
        return found

    async def image_of_file(self, content: bytes) -> Image:
        """Return the image of a file, as `submit`, which takes milliseconds to tell large files apart; here a thread
        does that too."""
        submitted = await asyncio.wrap_future(self._threads.submit(self.submit, content))
        return await asyncio.shield(asyncio.wrap_future(submitted))

    def _final(self, content: bytes) -> Image:
        import numpy as np

        self.num_decoded += 1
        return image_of(np.asarray(self._fit(decode_image(content, self.limits))))


def image_of(pixels: NDArray[Any]) -> Image:
    """Return pixels uint8 [H, W, 3] at their final size with their digest; they are copied, and read-only."""
    own = pixels.copy(order="C")
    own.flags.writeable = False
    height, width = own.shape[:2]
    size = height.to_bytes(8, "little") + width.to_bytes(8, "little")
    return Image(digest=hashlib.sha256(size + own.tobytes()).hexdigest(), pixels=own)


@contextmanager
def _explained(content: bytes) -> Iterator[None]:
    """Raise DataError instead of whatever decoders and readers of EXIF data raise for a broken file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"starts with {content[:8]!r} and cannot be decoded as PNG, JPEG, GIF or WebP: {error}"
        ) from error


def _opened(content: bytes, limits: ImageLimits) -> Any:
    """Return a Pillow image whose header was read and checked."""
    from PIL import Image as Pillow

    if len(content) > limits.max_file_bytes:
        raise DataError(f"a file of {len(content)} bytes, at most {limits.max_file_bytes} are decoded")
    image: Any = Pillow.open(io.BytesIO(content), formats=FORMATS)
    _check_declared(image, limits)
    return image


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
