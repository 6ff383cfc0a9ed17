"""Checks on rows, shared by all loaders: raw columns before mapping, and the columns of each kind after it.

Every complaint names rows (at most five), what was expected, what was found, and the nearest column when one is
missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import REQUIRED_COLUMNS, DataError
from areal.dataset.origins import place_of
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from datasets import Dataset

    from areal.api import DatasetKind
    from areal.dataset.reading import RawRows

MAX_EXAMPLES: Final = 5
RESERVED_COLUMNS: Final = frozenset({"prompt", "completions", "prompt_ids", "completion_ids"})
"""Parameter names of a reward function; a column of that name could not be passed to it."""
IMAGE_COLUMNS: Final = frozenset({"images", "image_places"})
"""Of SFT rows with images, both or none."""


def require_texts(raw: RawRows, *columns: str) -> None:
    """Raise DataError unless every row has a non-empty string in each of `columns`."""
    for column in columns:
        if raw.rows and not any(column in row for row in raw.rows):
            raise DataError(f"{raw.source}: {missing_column(column, raw.rows[0])}")
        complain(raw.source, ((raw.where(i), text_problem(column, row)) for i, row in enumerate(raw.rows)))


def require_numbers(raw: RawRows, *columns: str) -> None:
    """Raise DataError unless every row has a number in each of `columns`; true and false do not count."""
    for column in columns:
        complain(raw.source, ((raw.where(i), number_problem(column, row)) for i, row in enumerate(raw.rows)))


def require_unique(raw: RawRows, column: str) -> None:
    """Raise DataError when two rows have the same value in `column`; names the first row and its repetition."""
    first: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    for index, row in enumerate(raw.rows):
        key = repr(row.get(column))
        if key in first:
            problems.append((raw.where(index), f"{column} {key} was already used at {first[key]}"))
        first.setdefault(key, raw.where(index))
    complain(raw.source, problems)


def missing_column(column: str, row: Mapping[str, Any]) -> str:
    """Say that a column is missing, with the nearest present name."""
    hint = did_you_mean(column, map(str, row))
    return f"no column {column!r}: {hint and hint + ' '}found {', '.join(sorted(map(str, row))) or 'no columns'}"


def text_problem(column: str, row: Mapping[str, Any]) -> str:
    """Return why `row[column]` is not a usable text; empty when it is."""
    if column not in row:
        return missing_column(column, row)
    value = row[column]
    if not isinstance(value, str):
        return f"{column} is {type(value).__name__}, expected a string"
    return "" if value.strip() else f"{column} is empty"


def number_problem(column: str, row: Mapping[str, Any]) -> str:
    """Return why `row[column]` is not a number; empty when it is."""
    if column not in row:
        return missing_column(column, row)
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{column} is {type(value).__name__}, expected a number"
    return ""


def complain(source: str, problems: Iterable[tuple[str, str]], *, fix: str = "") -> None:
    """Raise DataError when any (place, problem) has a non-empty problem; at most five are spelled out. fix: for all."""
    found = [f"{place}: {problem}" for place, problem in problems if problem]
    if found:
        more = f"; and {len(found) - MAX_EXAMPLES} more" if len(found) > MAX_EXAMPLES else ""
        rows = "1 bad row" if len(found) == 1 else f"{len(found)} bad rows"
        advice = f"; {fix}" if fix else ""
        raise DataError(f"{source}: {rows}: {'; '.join(found[:MAX_EXAMPLES])}{more}{advice}", where=source, fix=fix)


def validate_dataset(dataset: Dataset, kind: DatasetKind, name: str) -> None:
    """Raise DataError unless `dataset` has rows and every row fits the schema of `kind` (`areal.api.dataset`)."""
    where = f"dataset {name!r} ({kind})"
    if len(dataset) == 0:
        raise DataError(f"{where} has 0 rows; check path, split and max_length")
    columns = dict.fromkeys(dataset.column_names)
    for column in sorted(REQUIRED_COLUMNS[kind]):
        if column not in columns:
            raise DataError(f"{where}: {missing_column(column, columns)}")
    clash = sorted(RESERVED_COLUMNS & set(columns)) if kind == "rl" else []
    if clash:
        raise DataError(
            f"{where}: columns {', '.join(clash)} are parameter names of every reward function; rename them"
        )
    _check_image_columns(columns, kind, where)
    wanted = REQUIRED_COLUMNS[kind] | (IMAGE_COLUMNS & set(columns) if kind == "sft" else set())
    needed = dataset.select_columns(sorted(wanted))
    complain(where, ((place_of(dataset, index), _row_problem(row)) for index, row in enumerate(needed)))


def _check_image_columns(columns: Collection[str], kind: DatasetKind, where: str) -> None:
    """Raise DataError for images that a run of this kind would silently leave out."""
    given = sorted(IMAGE_COLUMNS & set(columns))
    if kind == "preference" and given:
        raise DataError(f"{where}: column {given[0]}: preference pairs with images are not supported; remove it")
    if kind == "sft" and len(given) == 1:
        (missing,) = IMAGE_COLUMNS - set(given)
        raise DataError(f"{where}: column {given[0]} without {missing}; rows with images have both (areal.api.dataset)")


def messages_problem(messages: Any) -> str:
    """Return why `messages` is not a prompt: a non-empty string, or a chat that ends with another's turn; else ""."""
    if isinstance(messages, str):
        return "" if messages.strip() else "messages is an empty prompt"
    if not isinstance(messages, list) or not messages:
        return (
            "messages is empty or not a list, expected a chat such as [{'role': 'user', 'content': '...'}] or a string"
        )
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            return f"messages[{index}] is {message!r:.60}, expected a mapping with role and content"
        if not isinstance(message["role"], str) or not isinstance(message["content"], str):
            return f"messages[{index}]: role and content must be strings"
    if not any(message["content"].strip() for message in messages):
        return "messages is an empty prompt"
    if messages[-1]["role"] == "assistant":
        return "messages end with an assistant turn, expected a turn that the model can answer"
    return ""


_MASKS: Final = {"input_ids": "loss_mask", "chosen_ids": "chosen_loss_mask", "rejected_ids": "rejected_loss_mask"}


def _row_problem(row: Mapping[str, Any]) -> str:
    if "messages" in row:
        return messages_problem(row["messages"])
    for ids, mask in _MASKS.items():
        if ids not in row:
            continue
        if len(row[ids]) != len(row[mask]):
            return f"{ids} has {len(row[ids])} entries and {mask} {len(row[mask])}, expected equal counts"
        if any(value not in (0, 1) for value in row[mask]):
            return f"{mask} has values other than 0 and 1"
        if not any(row[mask]):
            return f"{mask} is all 0: nothing to learn"
    return _images_problem(row) if "images" in row else ""


def _images_problem(row: Mapping[str, Any]) -> str:
    images, places, length = row["images"] or [], row["image_places"] or [], len(row["input_ids"])
    if len(images) != len(places):
        return f"{len(images)} images and {len(places)} image_places, expected equal counts"
    if sorted(places) != list(places) or any(not 0 <= place < length for place in places):
        return f"image_places is {list(places)[:8]}, expected ascending numbers from 0 to {length - 1}: a token follows"
    return ""
