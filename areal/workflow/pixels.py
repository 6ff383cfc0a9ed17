"""Prompts with images for models that take pixels: `<image>` in the text becomes the placeholders of an image.

    prompts = PixelPrompts(tokenizer, processor="checkpoints/qwen2.5-vl", limits=ImageLimits(), enable_thinking=False)
    ids, images, text = await prompts.read({"messages": "<image>what is it?", "images": ["iVBORw0KGgo..."]})

Column `images` holds a list of base64-encoded files, as many as the prompt has marks. The text is cut at its marks and
each piece is encoded by itself; what stands between them depends on the final size of the image alone. Files are
decoded and resized in threads beside the event loop, once however many samples ask for one at the same time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError, DataError, FaultError, FaultKind, Image, ImageRef
from areal.dataset.encoding import encode_text
from areal.dataset.images import ENDS_WITH_IMAGE, decoded_file, prompt_pieces
from areal.dataset.pixels import FinalImages, ImageLimits
from areal.models.vision import read_vision, vision_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.workflow.assembly import PromptReader


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
        self.files = FinalImages(limits, vision.fit)
        self._tokenizer = tokenizer
        self._enable_thinking = enable_thinking

    async def read(self, data: Mapping[str, Any]) -> tuple[list[int], tuple[ImageRef, ...], str]:
        """Return ids of the row's `messages` with placeholders for its `images`, those images, and the text with marks.

        Raises FaultError(DATA_INVALID) when the row has no usable prompt or images, or not one image per mark.
        """
        try:
            pieces, text = prompt_pieces(data, self._tokenizer, enable_thinking=self._enable_thinking)
            ids, refs = await self.place(pieces, data["images"])
        except DataError as error:
            raise FaultError(FaultKind.DATA_INVALID, str(error)) from error
        return ids, refs, text

    async def place(self, pieces: Sequence[str], files: Sequence[Any]) -> tuple[list[int], tuple[ImageRef, ...]]:
        """Return ids of a text with the placeholders of an image between each two of its pieces, and the images.

        files: the base64 of each, one fewer than pieces. Raises DataError for a file that cannot be used, and when the
        text ends with an image.
        """
        images = await asyncio.gather(*(self._image(index, value) for index, value in enumerate(files)))
        sizes = [(image.height, image.width) for image in images]
        ids, spans = self.vision.place(
            [encode_text(piece, self._tokenizer) if piece else [] for piece in pieces], sizes
        )
        refs = tuple(
            ImageRef(image=image, start=start, length=length)
            for image, (start, length) in zip(images, spans, strict=True)
        )
        if refs and refs[-1].end == len(ids):
            raise DataError(ENDS_WITH_IMAGE)
        return ids, refs

    async def _image(self, index: int, value: Any) -> Image:
        content = await asyncio.to_thread(decoded_file, index, value)
        try:
            return await self.files.image_of_file(content)
        except DataError as error:
            raise DataError(f"images[{index}]: {error}") from error


async def read_prompt(
    data: Mapping[str, Any], texts: PromptReader, pixels: PixelPrompts | None
) -> tuple[Sequence[int], tuple[ImageRef, ...], str]:
    """Return ids, images and text of a row that may have images, by what reads either kind.

    pixels: None for a model of text. Raises FaultError(DATA_INVALID) as both of them do, and for images that the model
    is not known to read.
    """
    if not data.get("images"):
        ids, text = texts.read(data)
        return ids, (), text
    if pixels is None:
        message = "the row has images, and the model is not known to read any; set workflow_options.processor"
        raise FaultError(FaultKind.DATA_INVALID, message)
    return await pixels.read(data)
