"""Images of a row as base64 of the encoded file, whatever form the data hold them in, and prompts cut at their marks.

A value may be a path relative to the data, base64 (also as a data URL), bytes, or the {"bytes": ..., "path": ...} of a
Hugging Face table; a column may hold one image or a list. Decoding pixels is the work of the model's processor.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.encoding import encode_answer, encode_prompt, encode_text, has_chat_template
from areal.dataset.schema import complain, messages_problem, missing_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.dataset.reading import RawRows

IMAGE_MARK: Final = "<image>"
"""Where an image belongs in the text of a prompt."""

ENDS_WITH_IMAGE: Final = "the prompt ends with an image; put a question, or at least a line break, after it"
_SUFFIXES: Final = (".gif", ".jpeg", ".jpg", ".png", ".webp")


def require_images(raw: RawRows, column: str, *, optional: bool = False) -> list[list[str]]:
    """Return the images of every row, each as base64 of its file. optional: rows may have none.

    Raises DataError with row numbers when a row has none, or a file is not PNG, JPEG, GIF or WebP.
    """
    source = Path(raw.source)
    folder = source if source.is_dir() else source.parent
    images: list[list[str]] = []
    problems: list[tuple[str, str]] = []
    for index, row in enumerate(raw.rows):
        try:
            images.append([] if optional and not row.get(column) else row_images(row, column, folder))
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


def decoded_file(index: int, value: Any) -> bytes:
    """Return the file that `images[index]` of a row holds as base64. Raises DataError."""
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (ValueError, binascii.Error):
        content = None
    if content is None:
        raise DataError(f"images[{index}] is {value!r:.40}, expected a base64-encoded file")
    return content


def text_ids(row: Mapping[str, Any], tokenizer: Any) -> list[int]:
    """Return the token ids of the text of an RL row, without anything in the places of its images, which may be a
    control token's name ("<image>"). Raises DataError as `encode_prompt`; marks are not counted here.
    """
    if not row.get("images") or IMAGE_MARK not in str(row["messages"]):
        return encode_prompt(row["messages"], tokenizer)
    pieces = marked_text(row["messages"], tokenizer, enable_thinking=False).split(IMAGE_MARK)
    return [token for piece in pieces if piece for token in encode_text(piece, tokenizer)]


def sft_image_row(messages: Any, images: Sequence[str], answer: str, tokenizer: Any) -> dict[str, list[Any]]:
    """Return `input_ids` and `loss_mask` of the text of a prompt and its answer, with `images` and `image_places`.

    An image belongs before the token that `image_places` counts; its own tokens depend on the model, which a loader
    does not know. Raises DataError as `prompt_pieces`, and for a prompt that ends with an image.
    """
    pieces, _ = prompt_pieces({"messages": messages, "images": list(images)}, tokenizer, enable_thinking=False)
    prompt: list[int] = []
    places: list[int] = []
    for number, piece in enumerate(pieces):
        if number:
            places.append(len(prompt))
        prompt += encode_text(piece, tokenizer) if piece else []
    if places and places[-1] == len(prompt):
        raise DataError(ENDS_WITH_IMAGE)
    ids = encode_answer(answer, tokenizer)
    return {
        "input_ids": prompt + ids,
        "loss_mask": [0] * len(prompt) + [1] * len(ids),
        "images": list(images),
        "image_places": places,
    }


def prompt_pieces(data: Mapping[str, Any], tokenizer: Any, *, enable_thinking: bool) -> tuple[list[str], str]:
    """Return the rendered prompt of a row cut at its marks, one for each of its `images`, and the whole text.

    Raises DataError when the row has no usable prompt, or not one image per mark.
    """
    for column in ("messages", "images"):
        if column not in data:
            raise DataError(f"the row has no column {column!r}; found {', '.join(sorted(data))}")
    text = marked_text(data["messages"], tokenizer, enable_thinking=enable_thinking)
    pieces = text.split(IMAGE_MARK)
    images = data["images"]
    if not isinstance(images, list) or len(images) != len(pieces) - 1:
        found = len(images) if isinstance(images, list) else type(images).__name__
        raise DataError(f"the prompt has {len(pieces) - 1} {IMAGE_MARK} marks for {found} images, expected one each")
    return pieces, text


def marked_text(
    messages: Any, tokenizer: Any, *, enable_thinking: bool, tools: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """Return a prompt as text in which marks are still marks. tools: for the chat template, as it wants them.

    Raises DataError as `encode_prompt`, but for a control token that is called like the mark.
    """
    problem = messages_problem(messages)
    if problem:
        raise DataError(problem)
    if isinstance(messages, str):
        return messages
    if not has_chat_template(tokenizer):
        raise DataError("messages is a chat but the tokenizer has no chat template; give a plain string")
    for index, message in enumerate(messages):
        for token in tokenizer.all_special_tokens:
            if token != IMAGE_MARK and token in message["content"]:
                raise DataError(f"messages[{index}] contains the control token {token!r} as text; remove it")
    options: dict[str, Any] = {} if tools is None else {"tools": list(tools)}
    text: str = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, enable_thinking=enable_thinking, **options
    )
    return text
