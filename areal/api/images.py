"""Images of prompts, from the row to the loss: pixels at their final size, and where their tokens are.

An image is resized once, before anything else. From then on it is `Image`: uint8 pixels with a digest. Every request,
record and batch refers to that one object, so that the samples of a group, and the process that trains on them, hold
each image once. What is written to files names digests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Pixels as the model gets them, before they are normalised. Two images are equal when their digests are."""

    digest: str
    """SHA-256 in hexadecimal of height, width (8 bytes each, little-endian) and RGB bytes."""
    pixels: NDArray[Any] = field(compare=False, repr=False)
    """uint8 [H, W, 3], read-only."""

    def __post_init__(self) -> None:
        """Raise ValueError for an array of another kind."""
        shape, dtype = self.pixels.shape, str(self.pixels.dtype)
        if len(shape) != 3 or shape[2] != 3 or dtype != "uint8" or min(shape) < 1:
            raise ValueError(f"image: pixels are {dtype} {list(shape)}, expected uint8 [H, W, 3]")
        if self.pixels.flags.writeable:
            raise ValueError("image: pixels can be written to, so that the digest may become wrong; freeze the array")

    @property
    def height(self) -> int:
        """Rows of pixels."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """Columns of pixels."""
        return int(self.pixels.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """An image in a sequence of tokens."""

    image: Image
    start: int
    """Column of its first placeholder token."""
    length: int
    """Columns from its first placeholder to its last."""

    def __post_init__(self) -> None:
        """Raise ValueError for a span that cannot be."""
        if self.start < 0 or self.length < 1:
            raise ValueError(f"image {self.image.digest[:12]}: {self.length} columns from {self.start} on")

    @property
    def end(self) -> int:
        """Column behind its last placeholder."""
        return self.start + self.length


def check_images(images: Sequence[ImageRef], num_tokens: int, *, where: str) -> None:
    """Raise ValueError unless the images are in order, do not overlap, and a token follows the last one."""
    end = 0
    for number, ref in enumerate(images):
        if ref.start < end:
            raise ValueError(f"{where}: image {number} starts in column {ref.start}, before the end of the one before")
        end = ref.end
    if images and end >= num_tokens:
        raise ValueError(f"{where}: its last image ends in column {end} of {num_tokens}; a token has to follow it")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchImages:
    """The images of a padded batch; each distinct one has its pixels once.

    Shape letters: U distinct images, I places where one is seen, B bytes of all distinct ones.
    """

    pixels: Tensor
    """uint8 [B], [H, W, 3] of one image after the other."""
    offsets: Tensor
    """int64 [U + 1], where each begins, then B."""
    sizes: Tensor
    """int64 [U, 2], height and width."""
    digests: tuple[str, ...]
    """Of each distinct image."""
    index: Tensor
    """int64 [I], which image."""
    row: Tensor
    """int64 [I], in which row of the batch; places are sorted by row, then by start."""
    start: Tensor
    """int64 [I], column of the first placeholder."""
    length: Tensor
    """int64 [I], columns."""

    def pixels_of(self, number: int) -> Tensor:
        """Pixels uint8 [H, W, 3] of distinct image `number`: a view."""
        height, width = self.sizes[number].tolist()
        return self.pixels[int(self.offsets[number]) : int(self.offsets[number + 1])].view(height, width, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """An image in packed tokens, as `hidden` of a model that takes pixels gets it."""

    digest: str
    pixels: Tensor
    """uint8 [H, W, 3]."""
    start: int
    """Index of its first placeholder among the packed tokens."""
    length: int
    """Tokens from its first placeholder to its last, all in one sequence."""
