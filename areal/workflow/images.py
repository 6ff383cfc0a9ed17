"""Images of a prompt as tokens of the model's own vocabulary (early fusion): `<image>` in the text becomes their ids.

    images = ImagePrompts(tokenizer, image_tokenizer="areal.workflow.images:GRID", enable_thinking=False)
    ids, text = await images.read({"messages": "<image>what is it?", "images": ["iVBORw0KGgo..."]})

This is for models that read images as token ids, and for those only. Prompts of models that take pixels are made by
`areal.workflow.pixels`.

Column `images` holds a list of base64-encoded PNG, JPEG, GIF or WebP files, as many as the prompt has marks. An image
tokenizer is any function from the bytes of one file to numbers 0, 1, 2, ...; `first_token` is the id of number 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, DataError, FaultError, FaultKind, load
from areal.dataset.encoding import encode_text
from areal.dataset.images import decoded_file, prompt_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ImageTokenizer = Callable[[bytes], list[int]]

_FORMATS: Final = ("GIF", "JPEG", "PNG", "WEBP")
_MAX_FILE_BYTES: Final = 32 * 2**20
_MAX_PIXELS: Final = 2**26
_IMAGES_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class GridTokenizer:
    """An image tokenizer without learned parts: the mean brightness of each patch of a grid, in a few steps.

    rows, columns: of the grid, read line by line. levels: steps of brightness; numbers are 0 (black) .. levels - 1.
    Enough to tell simple pictures apart, for tests and for models trained from nothing.

    Example: an image whose left half is black and right half white is [0, 7] with 1 row, 2 columns and 8 levels.
    """

    rows: int = 4
    columns: int = 4
    levels: int = 8

    def __post_init__(self) -> None:
        """Refuse grids without patches."""
        if self.rows < 1 or self.columns < 1 or not 2 <= self.levels <= 256:
            raise ConfigError(f"{self}: expected at least 1 row, 1 column and 2 .. 256 levels")

    def __call__(self, image: bytes) -> list[int]:
        """Numbers of one encoded file. Raises DataError for content that is not an image, or too large to decode."""
        from PIL import Image

        with _opened(image) as decoded:
            grey = decoded.convert("L").resize((self.columns, self.rows), Image.Resampling.BOX)
        return [value * self.levels // 256 for value in grey.tobytes()]


GRID: Final = GridTokenizer()
"""16 tokens per image, numbers 0 .. 7: what `image_tokenizer: "areal.workflow.images:GRID"` names."""


class ImagePrompts:
    """Token ids and text of prompts with images.

    image_tokenizer: a function, or "module:object". first_token: id of its number 0; None puts the numbers right after
    the tokenizer's own ids, so that the model needs len(tokenizer) plus as many embeddings as there are numbers.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        image_tokenizer: str | ImageTokenizer,
        enable_thinking: bool,
        first_token: int | None = None,
    ) -> None:
        found = load("image tokenizer", image_tokenizer, {}) if isinstance(image_tokenizer, str) else image_tokenizer
        if not callable(found):
            raise ConfigError(f"image_tokenizer {image_tokenizer!r} is {type(found).__name__}, expected a function")
        if first_token is not None and first_token < 0:
            raise ConfigError(f"first_token is {first_token}, expected an id >= 0")
        self._tokenizer = tokenizer
        self._image_tokenizer: ImageTokenizer = found
        self._first = len(tokenizer) if first_token is None else first_token
        self._enable_thinking = enable_thinking
        self._recent: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    async def read(self, data: Mapping[str, Any]) -> tuple[list[int], str]:
        """Ids of the row's `messages` with the tokens of its `images` in place of the marks, and the text with marks.

        Images are decoded in a thread. Raises FaultError(DATA_INVALID) when the row has no usable prompt or images, or
        not one image per mark.
        """
        try:
            pieces, text = prompt_pieces(data, self._tokenizer, enable_thinking=self._enable_thinking)
            images = [await self._image(index, value) for index, value in enumerate(data["images"])]
            ids = encode_text(pieces[0], self._tokenizer) if pieces[0] else []
            for image, piece in zip(images, pieces[1:], strict=True):
                ids += [*image, *(encode_text(piece, self._tokenizer) if piece else [])]
        except DataError as error:
            raise FaultError(FaultKind.DATA_INVALID, str(error)) from error
        return ids, text

    async def _image(self, index: int, value: Any) -> tuple[int, ...]:
        """Ids of one image. The samples of a group share theirs, so recent ones are kept."""
        content = decoded_file(index, value)
        key = hashlib.sha256(content).digest()
        if key in self._recent:
            return self._recent[key]
        try:
            numbers = await asyncio.to_thread(self._image_tokenizer, content)
        except DataError as error:
            raise DataError(f"images[{index}]: {error}") from error
        ids = tuple(self._first + number for number in numbers)
        self._recent[key] = ids
        if len(self._recent) > _IMAGES_KEPT:
            self._recent.popitem(last=False)
        return ids


def _opened(content: bytes) -> Any:
    """Return the decoded image. Raises DataError; what would need too much memory is refused before it is decoded."""
    from PIL import Image

    if len(content) > _MAX_FILE_BYTES:
        raise DataError(f"a file of {len(content)} bytes, at most {_MAX_FILE_BYTES} are decoded")
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        if image.width * image.height <= _MAX_PIXELS:
            image.load()
            return image
    # SyntaxError is what Pillow raises for a broken PNG; the last one for images that would fill the memory.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"starts with {content[:8]!r} and cannot be decoded: {error}") from error
    raise DataError(f"{image.width} x {image.height} pixels, at most {_MAX_PIXELS} are decoded")
