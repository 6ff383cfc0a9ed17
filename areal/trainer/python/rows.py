"""Rows that are in memory, as files in the run directory that the loaders read like all others.

    rows = given_rows([{"prompt": "8*9=", "answer": "72"}], what="train", prefix="train")
    rows.file_name        # "train-5d41402abc4b2a76.jsonl": named by its content
    rows.write(folder)

So rows get the same checks, limits, fingerprints and places for messages as rows of a file, and a copy of the run's
configuration finds them again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, DataError
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_EXPECTED: Final = "expected rows (a list or generator of dicts, a datasets.Dataset) or the name or path of a dataset"
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows:
    """Rows and the file they belong into."""

    file_name: str
    save: Callable[[Path], None]
    """Writes the file."""

    def write(self, folder: Path) -> None:
        """Write the file unless it is there: its name stands for its content."""
        if not (folder / self.file_name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.save(folder / self.file_name)


def given_rows(value: Any, *, what: str, prefix: str) -> GivenRows:
    """Return rows from a list, generator or other iterable of dicts (of texts: prompts), a Dataset or a DataFrame.

    what: begins messages, e.g. "train" or "sources.easy". prefix: begins the name of the file. Raises ConfigError for
    anything else, DataError with the number of the row for a row other than a dict and a value that JSON does not have.
    """
    package = type(value).__module__.partition(".")[0]
    if package == "datasets" and isinstance(value, Mapping):
        names = ", ".join(map(str, value))
        raise ConfigError(
            f"{what} is a DatasetDict with the splits {names}, expected one of them",
            where=what,
            fix=f'give one split, e.g. {what}=dataset["train"]',
        )
    if package == "datasets" and hasattr(value, "to_parquet"):
        return _of_dataset(value, what, prefix)
    if package == "pandas" and hasattr(value, "to_dict"):
        value = value.to_dict("records")
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigError(f"{what} is a {type(value).__name__}, {_EXPECTED}", where=what, fix=_EXPECTED)
    text = "".join(_lines(value, what))
    if not text:
        raise DataError(f"{what} has no rows", where=what, fix="give at least one row")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return GivenRows(file_name=f"{prefix}-{digest}.jsonl", save=lambda path: atomic_write(path, text))


def _lines(rows: Iterable[Any], what: str) -> Iterator[str]:
    for number, row in enumerate(rows):
        fields = {"prompt": row} if isinstance(row, str) else row
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            raise DataError(
                f"{what}: row {number} is {row!r:.80}, expected a dict from column names to values",
                where=f"{what}, row {number}",
                fix='write rows as {"prompt": ..., "answer": ...}',
            )
        try:
            yield json.dumps(dict(fields), ensure_ascii=False, default=_plain) + "\n"
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{what}: row {number}: {_column_of(fields)}, expected texts, numbers, lists and dicts ({error})",
                where=f"{what}, row {number}",
                fix="turn it into such a value, or give a datasets.Dataset",
            ) from error


def _plain(value: Any) -> Any:
    """Turn numbers and arrays of NumPy into those of Python; json calls it for what it does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _column_of(row: Mapping[str, Any]) -> str:
    """Name the first column that JSON cannot hold."""
    for name, value in row.items():
        try:
            json.dumps(value, default=_plain)
        except (TypeError, ValueError):
            return f"column {name!r} holds a {type(value).__name__}"
    return "a column cannot be written"


def _of_dataset(dataset: Any, what: str, prefix: str) -> GivenRows:
    if len(dataset) == 0:
        raise DataError(f"{what} has no rows", where=what, fix="give at least one row")
    digest = hashlib.sha256(str(dataset.features).encode())
    for batch in dataset.with_format("arrow").iter(batch_size=_BATCH):
        for row in batch.to_pylist():
            digest.update(repr(row).encode())

    def save(path: Path) -> None:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        dataset.to_parquet(str(unfinished))
        unfinished.replace(path)

    return GivenRows(file_name=f"{prefix}-{digest.hexdigest()[:16]}.parquet", save=save)
