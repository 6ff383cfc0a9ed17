"""Reads raw rows from wherever they are: files of any kind that `areal.dataset.files` walks through, or a hub id.

Knows nothing about what rows mean. Every row keeps its place in the source, so that a complaint can name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from areal.api import DataError
from areal.dataset.files import SUFFIXES, SplitFiles, find_files, read_records

FIXTURES: Final = Path(__file__).parent / "fixtures"
"""Rows packaged with the loaders."""

_MAX_BAD_LINES: Final = 5


@dataclass(frozen=True, kw_only=True)
class RawRows:
    """Rows as they were read.

    Example: `RawRows(source="data/train.jsonl", unit="line", numbers=[1, 2], rows=[{"question": "..."}, ...])`.
    """

    source: str
    unit: str
    """What `numbers` count: "line" (from 1) of a text file, or "row" (from 0) of a table."""
    numbers: list[int]
    rows: list[dict[str, Any]]

    def where(self, index: int) -> str:
        """Place of a row for messages, e.g. "line 7"."""
        return f"{self.unit} {self.numbers[index]}"


def read_rows(path: str, split: str, *, hub_config: str | None = None) -> RawRows:
    """Read one split.

    path: a file; a folder with `<split>.jsonl`, `<split>.jsonl.gz`, `<split>.parquet`, `<split>-*.parquet`,
    `<split>.json`, `<split>.csv` or `<split>.tsv`, also below `data/`; a folder written by `Dataset.save_to_disk` or
    `DatasetDict.save_to_disk`; else a hub id such as "openai/gsm8k". hub_config: configuration name on the hub. Raises
    DataError when nothing readable is there or lines are broken. CSV and TSV fields are texts.
    """
    location = Path(path).expanduser()
    if location.exists():
        return _read_files(find_files(location, split))
    if path.startswith((".", "/", "~")) or path.endswith(tuple(SUFFIXES)):
        raise DataError(
            f"no dataset at {path!r}: expected a file, a folder with {split}.jsonl or {split}.parquet, or a hub id"
        )
    return _read_hub(path, split, hub_config)


def _read_files(files: SplitFiles) -> RawRows:
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    num_bad = 0
    for record in read_records(files):
        if record.row is None:
            num_bad += 1
            if len(bad) < _MAX_BAD_LINES:
                bad.append(f"{files.unit} {record.number}: {record.problem}")
            continue
        numbers.append(record.number)
        rows.append(record.row)
    if num_bad:
        more = f"; and {num_bad - len(bad)} more" if num_bad > len(bad) else ""
        expected = "as many fields as the header" if files.format in ("csv", "tsv") else "one UTF-8 JSON object"
        raise DataError(
            f"{files.source}: {num_bad} unreadable {files.unit}s: {'; '.join(bad)}{more}. "
            f"Expected {expected} per {files.unit}"
        )
    return RawRows(source=files.source, unit=files.unit, numbers=numbers, rows=rows)


def _read_hub(name: str, split: str, config: str | None) -> RawRows:
    import datasets

    try:
        rows = datasets.load_dataset(name, config, split=split).to_list()
    except (FileNotFoundError, ConnectionError, ValueError, OSError) as error:
        raise DataError(
            f"cannot load split {split!r} of {name!r}: it is neither a local path nor a reachable hub dataset ({error})"
        ) from error
    return RawRows(source=name, unit="row", numbers=list(range(len(rows))), rows=rows)
