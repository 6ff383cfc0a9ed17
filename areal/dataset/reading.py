"""Reads raw rows from wherever they are: files of any kind that `areal.dataset.files` walks through, or a hub id.

Knows nothing about what rows mean. Every row keeps its place in the source, so that a complaint can name it.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.files import SUFFIXES, SplitFiles, find_files, read_records
from areal.hub.download import fetch, file_names
from areal.hub.names import explained, find_name, pinned

if TYPE_CHECKING:
    from areal.hub.names import HubName

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
    `DatasetDict.save_to_disk`; else a dataset of the hub, "openai/gsm8k@main". hub_config: configuration name on the
    hub. Raises DataError when nothing readable is there or lines are broken, HubError when the hub does not have it.
    CSV and TSV fields are texts.
    """
    location = Path(path).expanduser()
    if location.exists():
        return _read_files(find_files(location, split))
    name = find_name(path)
    if name is None:
        raise DataError(
            f"no dataset at {path!r}: expected a file, a folder with {split}.jsonl or {split}.parquet, "
            "or org/name@revision of the hub"
        )
    return _read_hub(name, split, hub_config)


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


def _read_hub(name: HubName, split: str, config: str | None) -> RawRows:
    """Read the files that a local folder would be searched for; what is laid out otherwise, `datasets` finds."""
    commit = pinned(name, "dataset")
    names = file_names(commit, kind="dataset")
    for folder in ([f"{config}/"] if config else []) + ["", "data/"]:
        wanted = [f"{folder}{split}{suffix}" for suffix in SUFFIXES]
        patterns = next(([file] for file in wanted if file in names), [f"{folder}{split}-*.parquet"])
        if fnmatch.filter(names, patterns[0]):
            return _read_files(find_files(fetch(commit, patterns, kind="dataset") / folder, split))
    import datasets

    try:
        with explained(name, "dataset"):
            loaded = datasets.load_dataset(commit.repo, config, split=split, revision=commit.revision)
    except ValueError as error:
        raise DataError(f"dataset {name} has no split {split!r} that can be read: {error}") from error
    rows = loaded.to_list()
    return RawRows(source=str(commit), unit="row", numbers=list(range(len(rows))), rows=rows)
