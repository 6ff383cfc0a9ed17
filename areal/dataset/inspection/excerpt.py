"""Chooses a few intact rows of a dataset to package with its loader: real rows, only the columns that are read, small.

Images are reduced to thumbnails; nothing else is changed and nothing is invented.
"""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from areal.api import DataError
from areal.dataset.images import image_file
from areal.dataset.inspection.checks import final_answer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from areal.dataset.inspection.mapping import RowMapping

NUM_CANDIDATES: Final = 400
"""Intact rows that are looked at, from the start of the data."""
MAX_BYTES: Final = 32 * 1024
"""Of both parts together, unless single rows are longer."""
MAX_ROW_BYTES: Final = 1024 * 1024
MAX_FINAL: Final = 80
"""Characters of a final answer that is found in a solution."""
THUMBNAIL_PIXELS: Final = 24


class ExcerptRow(NamedTuple):
    """One intact row as a line of JSON."""

    place: str
    line: str
    prompt: str
    """What the model is asked, as JSON: no two packaged rows ask the same."""


class Excerpt(NamedTuple):
    """Rows for the packaged splits, in their order in the data."""

    train: list[ExcerptRow]
    test: list[ExcerptRow]


def candidate(row: dict[str, Any], place: str, mapping: RowMapping, folder: Path) -> ExcerptRow | None:
    """Return the columns that a loader reads as one line of JSON; None when JSON cannot say them, or the row is too
    long.
    """
    if mapping.final in ("hash", "boxed"):
        # The final answer is written into a test as a literal.
        found = final_answer(row[mapping.answer], mapping.final)
        if len(ascii(found)) > MAX_FINAL:
            return None
    kept = {column: row.get(column) for column in mapping.used if column in row}
    try:
        if mapping.image:
            images = kept[mapping.image]
            kept[mapping.image] = (
                [_thumbnail(image, folder) for image in images]
                if isinstance(images, list)
                else _thumbnail(images, folder)
            )
        line = json.dumps(kept, ensure_ascii=False, allow_nan=False)
        num_bytes = len(line.encode())
    except (DataError, TypeError, ValueError):
        return None
    # A line separator of Unicode inside the text is legal JSON, but many readers of lines would cut there.
    line = "".join(f"\\u{ord(c):04x}" if c in "\x85\u2028\u2029" else c for c in line)
    asked = [kept.get(column) for column in (mapping.question, mapping.messages, mapping.image) if column]
    prompt = json.dumps(asked) if asked else line
    return ExcerptRow(place, line, prompt) if num_bytes <= MAX_ROW_BYTES else None


def choose(candidates: Sequence[ExcerptRow], held_out: Sequence[ExcerptRow], num_train: int, num_test: int) -> Excerpt:
    """Return the shortest candidates for both parts within MAX_BYTES, at least one each, and none that asks what
    another does: a test row that is a train row, too, says nothing.

    held_out: candidates of the data's own test split; empty takes the test part from `candidates` too, apart from the
    train part as soon as there are two different rows.
    """
    candidates = _different(candidates)
    asked = {row.prompt for row in candidates}
    held_out = [row for row in _different(held_out) if row.prompt not in asked]
    if held_out:
        return Excerpt(
            _shortest(candidates, num_train, MAX_BYTES * 2 // 3), _shortest(held_out, num_test, MAX_BYTES // 3)
        )
    if len(candidates) < 2:
        return Excerpt(list(candidates), list(candidates))
    chosen = _shortest(candidates, num_train + num_test, MAX_BYTES)
    if len(chosen) < 2:  # one long row fills the budget: the splits still want one each
        chosen = _shortest(candidates, 2, 2 * MAX_ROW_BYTES)
    num_first = max(1, min(num_train, len(chosen) * num_train // (num_train + num_test)))
    return Excerpt(chosen[:num_first], chosen[num_first:])


def _different(candidates: Sequence[ExcerptRow]) -> list[ExcerptRow]:
    """Return the first of each prompt."""
    return list({row.prompt: row for row in reversed(candidates)}.values())[::-1]


def _shortest(candidates: Sequence[ExcerptRow], count: int, budget: int) -> list[ExcerptRow]:
    order = sorted(range(len(candidates)), key=lambda index: (len(candidates[index].line), index))[:count]
    picked: list[int] = []
    used = 0
    for index in order:
        used += len(candidates[index].line.encode()) + 1
        if picked and used > budget:
            break
        picked.append(index)
    return [candidates[index] for index in sorted(picked)]


def _thumbnail(value: Any, folder: Path) -> str:
    """Return a small PNG as base64. Raises DataError when the file cannot be decoded."""
    from PIL import Image, UnidentifiedImageError

    content = image_file(value, folder)
    try:
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("RGB")
            small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the image cannot be decoded ({error})") from error
    stream = io.BytesIO()
    small.save(stream, format="PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()
