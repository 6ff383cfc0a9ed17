"""Keep small pictures of the images of rollouts beside them, and give them to reports.

    pictures = PictureStore(run_dir / PICTURES_FOLDER, limit=256)
    pictures.add(trajectory.images)                                # RUN/pictures/<digest>.png, each image once
    load_pictures(run_dir / PICTURES_FOLDER, ["3f9a..."])          # {"3f9a...": "data:image/png;base64,..."}

Records name images by digest and size; a picture is only for looking at, at most 192 pixels wide and high. Training
reads none of this.
"""

from __future__ import annotations

import base64
import io
import json
import re
from typing import TYPE_CHECKING, Any, Final

from areal.infra.metrics.attempts import current_lines
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from areal.api import Image, ImageRef

PICTURES_FOLDER: Final = "pictures"
MAX_SHOWN: Final = 400
MAX_SHOWN_BYTES: Final = 4 * 1024 * 1024
"""Of the files that one page holds: a page of this size still opens at once."""
_SIDE: Final = 192
_PNG_BYTES: Final = 24 * 1024
"""Pictures that need more as PNG become JPEG."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_TYPES: Final = {".jpg": ("image/jpeg", b"\xff\xd8\xff"), ".png": ("image/png", b"\x89PNG\r\n\x1a\n")}


class PictureStore:
    """Writes pictures of one run, a limited number of them."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        """limit: pictures of the run in all, those of earlier starts included."""
        self._folder = folder
        self._limit = limit
        self._kept: set[str] | None = None

    def add(self, images: Iterable[ImageRef]) -> None:
        """Write pictures of images that have none, as long as there may be more. Raises OSError."""
        if self._kept is None:
            self._kept = {file.stem for file in self._folder.glob("*") if file.suffix in _TYPES}
        for ref in images:
            image = ref.image
            if image.digest in self._kept or len(self._kept) >= self._limit:
                continue
            content, suffix = _picture(image)
            self._folder.mkdir(exist_ok=True)
            atomic_write(self._folder / f"{image.digest}{suffix}", content)
            self._kept.add(image.digest)


def load_pictures(folder: Path, digests: Iterable[str]) -> dict[str, str]:
    """Return data URIs of pictures by digest, the first ones of `digests` that a page has room for.

    Names that are not digests, and files that are neither PNG nor JPEG, are left out.
    """
    found: dict[str, str] = {}
    size = 0
    for digest in dict.fromkeys(digests):
        if len(found) >= MAX_SHOWN or not _DIGEST.fullmatch(digest):
            continue
        for suffix, (mime, begin) in _TYPES.items():
            file = folder / f"{digest}{suffix}"
            if not file.is_file() or size + file.stat().st_size > MAX_SHOWN_BYTES:
                continue
            content = file.read_bytes()
            if content.startswith(begin):
                size += len(content)
                found[digest] = f"data:{mime};base64,{base64.b64encode(content).decode()}"
                break
    return found


def named_images(rollouts: Path) -> list[dict[str, Any]]:
    """Return the distinct images that kept rollouts name, newest first: digest, height, width, and number of tokens."""
    found: dict[str, dict[str, Any]] = {}
    if not rollouts.is_file():
        return []
    for line in current_lines(rollouts):
        if b'"images":[' not in line or not line.endswith(b"\n"):
            continue  # nearly all lines of runs without images; they are long
        try:
            images = [image for sample in json.loads(line)["samples"] for image in sample.get("images", ())]
            for image in images:
                found.pop(image["digest"], None)
                found[image["digest"]] = {
                    "digest": image["digest"],
                    "height": image["height"],
                    "width": image["width"],
                    "tokens": image["length"],
                }
        except (ValueError, KeyError, TypeError):
            continue
    return list(reversed(found.values()))


def _picture(image: Image) -> tuple[bytes, str]:
    """Return the file of a small picture and its suffix."""
    from PIL import Image as Pillow

    picture = Pillow.fromarray(image.pixels)
    picture.thumbnail((_SIDE, _SIDE))
    for form, suffix, options in (("PNG", ".png", {"optimize": True}), ("JPEG", ".jpg", {"quality": 80})):
        stream = io.BytesIO()
        picture.save(stream, form, **options)
        if suffix == ".jpg" or stream.tell() <= _PNG_BYTES:
            break
    return stream.getvalue(), suffix
