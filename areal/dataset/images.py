"""Images of a row as base64 of the encoded file, whatever form the data hold them in.

A value may be a path relative to the data, base64 (also as a data URL), bytes, or the {"bytes": ..., "path": ...} of a
Hugging Face table; a column may hold one image or a list. Decoding pixels is the work of the model's processor.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.schema import complain, missing_column

if TYPE_CHECKING:
    from areal.dataset.reading import RawRows

IMAGE_MARK: Final = "<image>"
"""Where an image belongs in the text of a prompt."""

_SUFFIXES: Final = (".gif", ".jpeg", ".jpg", ".png", ".webp")


def require_images(raw: RawRows, column: str) -> list[list[str]]:
    """Return the images of every row, each as base64 of its file.

    Raises DataError with row numbers when a row has none, or a file is not PNG, JPEG, GIF or WebP.
    """
    source = Path(raw.source)
    folder = source if source.is_dir() else source.parent
    images: list[list[str]] = []
    problems: list[tuple[str, str]] = []
    for index, row in enumerate(raw.rows):
        try:
            images.append(row_images(row, column, folder))
        except DataError as error:
            problems.append((raw.where(index), str(error)))
    complain(raw.source, problems)
    return images


def row_images(row: dict[str, Any], column: str, folder: Path) -> list[str]:
    """Return the images of one row; `folder` is what relative paths start from. Raises DataError."""
    if column not in row:
        raise DataError(missing_column(column, row))
    values = row[column] if isinstance(row[column], list) else [row[column]]
    if not values:
        raise DataError(f"{column} is empty")
    try:
        return [base64.b64encode(image_file(value, folder)).decode() for value in values]
    except DataError as error:
        raise DataError(f"{column}: {error}") from error


def image_file(value: Any, folder: Path) -> bytes:
    """Return the encoded file. Raises DataError when there is none; a path never leads out of `folder`."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str) and value.lower().endswith(_SUFFIXES):
        path = (folder / value).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise DataError(f"{value!r:.80} leads out of the folder of the data")
        try:
            value = path.read_bytes()
        except OSError as error:
            raise DataError(f"{value!r:.80} cannot be read ({error.strerror})") from error
    elif isinstance(value, str):
        text = value.partition(";base64,")[2] if value.startswith("data:") else value
        try:
            value = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise DataError(f"{value!r:.40} is neither base64 nor the path of an image") from error
    if not isinstance(value, bytes):
        raise DataError(f"expected an image, found {type(value).__name__}")
    if not is_image(value):
        raise DataError(f"starts with {value[:8]!r}, expected a PNG, JPEG, GIF or WebP file")
    return value


def is_image(content: bytes) -> bool:
    """Return whether a file starts as one of the formats that every image library reads."""
    webp = content[:4] == b"RIFF" and content[8:12] == b"WEBP"
    return webp or content.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"))


def with_image_marks(text: str, num_images: int) -> str:
    """Return the text with one `<image>` for each image; those it lacks are put before it, each on its own line."""
    return f"{IMAGE_MARK}\n" * (num_images - text.count(IMAGE_MARK)) + text
