"""Images of requests on their way to a server, and the comparison of what the server made of them with what was meant.

    contracted([5, 27, 27, 27, 9], images)      # [5, 27, 9]: one placeholder for each image, which the server expands
    png_url(image)                              # b"data:image/png;base64,...": every pixel as it is
    await body_with_images({...}, images)       # the JSON of a request, made beside the event loop
    check_echo(echo, call_tokens, images, where="vllm-0")

Records hold expanded prompts. A server expands by itself, and would expand an expanded prompt once more silently.
What it used is therefore compared for every call; a difference is an error, never corrected.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from areal.engine.server.errors import BrokenTokensError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import Image, ImageRef

_FILES_KEPT: Final = 64


def contracted(tokens: Sequence[int], images: Sequence[ImageRef]) -> list[int]:
    """Return the tokens with the first placeholder of each image only. Raises ValueError for an image whose columns
    hold different tokens: then they are not placeholders alone."""
    found: list[int] = []
    end = 0
    for ref in images:
        if len(set(tokens[ref.start : ref.end])) != 1:
            raise ValueError(f"columns {ref.start} to {ref.end - 1} hold other tokens than placeholders of an image")
        found += [*tokens[end : ref.start], tokens[ref.start]]
        end = ref.end
    return [*found, *tokens[end:]]


@lru_cache(maxsize=_FILES_KEPT)
def png_url(image: Image) -> bytes:
    """Return the image as a lossless file in a URL; recent ones are kept."""
    from PIL import Image as Pillow

    stream = io.BytesIO()
    Pillow.fromarray(image.pixels).save(stream, "PNG", compress_level=1)
    return b"data:image/png;base64," + base64.b64encode(stream.getvalue())


async def body_with_images(body: Mapping[str, Any], images: Sequence[ImageRef]) -> bytes:
    """Return `body` as JSON, with the files of images as its `content_parts`.

    Files are made in threads. What is in base64 needs no escapes, so it is put in as it is: to look for some would keep
    all other threads waiting for as long as it takes, 6 ms for an image of 1024 x 1024 pixels.
    """
    urls = await asyncio.gather(*(asyncio.to_thread(png_url, ref.image) for ref in images))
    pieces = [json.dumps(body).encode().removesuffix(b"}"), b', "content_parts": [{"type": "image_url", "url": "']
    for url in urls:
        pieces += [url, b'"}, {"type": "image_url", "url": "']
    pieces[-1] = b'"}]}'
    return await asyncio.to_thread(b"".join, pieces)


def check_echo(answer: object, tokens: Sequence[int], images: Sequence[ImageRef], *, where: str) -> None:
    """Compare `prompt_token_ids` and `mm_placeholders` of an answer with the prompt and its images.

    Raises BrokenTokensError when the server does not say what it used, or used something else.
    """
    fields: dict[str, Any] = answer if isinstance(answer, dict) else {}
    used, places = fields.get("prompt_token_ids"), fields.get("mm_placeholders")
    if not isinstance(used, list) or not isinstance(places, dict):
        raise BrokenTokensError(f"{where} does not say what prompt it made of {len(images)} images, which it must")
    wanted = [{"offset": ref.start, "length": ref.length} for ref in images]
    found = places.get("image")
    if set(places) != {"image"} or found != wanted:
        raise BrokenTokensError(
            f"{where} placed images as {_short(places)}, expected {_short({'image': wanted})}: its image processor "
            f"differs from that of the run (sizes, patches), so its samples are of another prompt"
        )
    if used != list(tokens):
        first = next((i for i, pair in enumerate(zip(used, tokens, strict=False)) if pair[0] != pair[1]), None)
        at = f"from token {first}" if first is not None else "in length"
        raise BrokenTokensError(
            f"{where} used a prompt of {len(used)} tokens, expected {len(tokens)}; they differ {at}: its samples are "
            f"of another prompt"
        )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
