"""Prompts with images for models that take pixels: `<image>` in the text becomes the placeholders of an image.

    prompts = PixelPrompts(tokenizer, processor="checkpoints/qwen2.5-vl", limits=ImageLimits(), enable_thinking=False)
    ids, images, text = await prompts.read({"messages": "<image>what is it?", "images": ["iVBORw0KGgo..."]})

Column `images` holds a list of base64-encoded files, as many as the prompt has marks. The text is cut at its marks and
each piece is encoded by itself; what stands between them depends on the final size of the image alone. Files are
decoded and resized in threads beside the event loop, once however many samples ask for one at the same time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, DataError, FaultError, FaultKind, Image, ImageRef
from areal.dataset.encoding import encode_text
from areal.dataset.pixels import ImageLimits, decode_image, image_of
from areal.models.vision import read_vision, vision_format
from areal.workflow.images import prompt_pieces

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMAGES_KEPT: Final = 256
_THREADS: Final = 2


class PixelPrompts:
    """Token ids, images and text of prompts. Serves any number of episodes at once, on any event loop."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        processor: str | Mapping[str, Any],
        limits: ImageLimits,
        enable_thinking: bool,
        max_pixels: int | None = None,
    ) -> None:
        """processor: the checkpoint of the model, or the content of its config.json. max_pixels: of a final image.

        Raises ConfigError for a model that reads text only, ModelError for one whose images are not known.
        """
        if isinstance(processor, str):
            vision = read_vision(processor, max_pixels=max_pixels)
        else:
            vision = vision_format(processor, max_pixels=max_pixels)
        if vision is None:
            raise ConfigError(
                f"workflow_options.processor names a model that reads text only ({processor!r:.60}); give the "
                f"checkpoint of an image-text model"
            )
        self.vision = vision
        self.num_decoded = 0
        """Files that were decoded so far."""
        self._tokenizer = tokenizer
        self._limits = limits
        self._enable_thinking = enable_thinking
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")
        self._recent: OrderedDict[bytes, Future[Image]] = OrderedDict()

    async def read(self, data: Mapping[str, Any]) -> tuple[list[int], tuple[ImageRef, ...], str]:
        """Return ids of the row's `messages` with placeholders for its `images`, those images, and the text with marks.

        Raises FaultError(DATA_INVALID) when the row has no usable prompt or images, or not one image per mark.
        """
        try:
            pieces, text = prompt_pieces(data, self._tokenizer, enable_thinking=self._enable_thinking)
            files = [_file(index, value) for index, value in enumerate(data["images"])]
            images = await asyncio.gather(*(self._image(index, file) for index, file in enumerate(files)))
            ids = self._encoded(pieces[0])
            refs: list[ImageRef] = []
            for image, piece in zip(images, pieces[1:], strict=True):
                block, before = self.vision.block(image.height, image.width)
                length = self.vision.num_placeholders(image.height, image.width)
                refs.append(ImageRef(image=image, start=len(ids) + before, length=length))
                ids += [*block, *self._encoded(piece)]
            if refs and refs[-1].end == len(ids):
                raise DataError("the prompt ends with an image; put a question, or at least a line break, after it")
        except DataError as error:
            raise FaultError(FaultKind.DATA_INVALID, str(error)) from error
        return ids, tuple(refs), text

    def _encoded(self, piece: str) -> list[int]:
        return encode_text(piece, self._tokenizer) if piece else []

    async def _image(self, index: int, content: bytes) -> Image:
        key = hashlib.sha256(content).digest()
        if key not in self._recent:
            self._recent[key] = self._threads.submit(self._final, content)
            if len(self._recent) > _IMAGES_KEPT:
                self._recent.popitem(last=False)
        try:
            return await asyncio.shield(asyncio.wrap_future(self._recent[key]))
        except DataError as error:
            raise DataError(f"images[{index}]: {error}") from error

    def _final(self, content: bytes) -> Image:
        """Decode and resize one file."""
        import numpy as np

        self.num_decoded += 1
        return image_of(np.asarray(self.vision.fit(decode_image(content, self._limits))))


def _file(index: int, value: Any) -> bytes:
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (ValueError, binascii.Error):
        content = None
    if content is None:
        raise DataError(f"images[{index}] is {value!r:.40}, expected a base64-encoded file")
    return content
