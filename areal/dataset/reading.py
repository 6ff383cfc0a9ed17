"""Reads raw rows from wherever they are: JSON lines (plain or gzip), parquet, a saved Hugging Face dataset, or a hub
id.

Knows nothing about what rows mean. Every row keeps its place in the source, so that a complaint can name it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES: Final = Path(__file__).parent / "fixtures"
"""Rows packaged with the loaders."""

_MAX_BAD_LINES: Final = 5
_SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".parquet")


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

    path: a file; a folder with `<split>.jsonl`, `<split>.jsonl.gz`, `<split>.parquet` or `<split>-*.parquet`; a
    folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`; else a hub id such as "openai/gsm8k".
    hub_config: configuration name on the hub. Raises DataError when nothing readable is there or lines are broken.
    """
    location = Path(path).expanduser()
    if location.is_file():
        return _read_file(location)
    if location.is_dir():
        return _read_folder(location, split)
    if path.startswith((".", "/", "~")) or path.endswith(_SUFFIXES):
        raise DataError(
            f"no dataset at {path!r}: expected a file, a folder with {split}.jsonl or {split}.parquet, or a hub id"
        )
    return _read_hub(path, split, hub_config)


def _read_folder(folder: Path, split: str) -> RawRows:
    for suffix in _SUFFIXES:
        if (folder / f"{split}{suffix}").is_file():
            return _read_file(folder / f"{split}{suffix}")
    shards = sorted(folder.glob(f"{split}-*.parquet"))
    if shards:
        return _read_parquet(shards)
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return _read_saved(folder, split)
    present = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
    raise DataError(
        f"{folder} has no split {split!r}: expected {split}.jsonl[.gz], {split}.parquet or a saved dataset, "
        f"found {present}"
    )


def _read_file(path: Path) -> RawRows:
    if path.name.endswith((".jsonl", ".jsonl.gz", ".json")):
        return _read_json_lines(path)
    if path.suffix == ".parquet":
        return _read_parquet([path])
    raise DataError(f"{path}: expected a file named *.jsonl, *.jsonl.gz or *.parquet")


def _lines(path: Path) -> Iterator[bytes]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            yield from stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); download or write it again") from error


def _read_json_lines(path: Path) -> RawRows:
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    num_bad = 0
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            problem = "" if isinstance(row, dict) else f"a JSON object expected, found {type(row).__name__}"
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 (byte {line[error.start]:#04x} at column {error.start + 1})"
        except json.JSONDecodeError as error:
            problem = f"not JSON ({error.msg} at column {error.colno})"
        if problem:
            num_bad += 1
            if len(bad) < _MAX_BAD_LINES:
                bad.append(f"line {number}: {problem}")
            continue
        numbers.append(number)
        rows.append(row)
    if num_bad:
        more = f"; and {num_bad - len(bad)} more" if num_bad > len(bad) else ""
        raise DataError(
            f"{path}: {num_bad} unreadable lines: {'; '.join(bad)}{more}. Expected one UTF-8 JSON object per line"
        )
    return RawRows(source=str(path), unit="line", numbers=numbers, rows=rows)


def _read_parquet(paths: list[Path]) -> RawRows:
    import pyarrow
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            rows.extend(pyarrow.parquet.read_table(path).to_pylist())
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is not a readable parquet file: {error}") from error
    source = str(paths[0]) if len(paths) == 1 else f"{paths[0]} .. {paths[-1].name}"
    return RawRows(source=source, unit="row", numbers=list(range(len(rows))), rows=rows)


def _read_saved(folder: Path, split: str) -> RawRows:
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
        if isinstance(saved, datasets.DatasetDict):
            if split not in saved:
                raise DataError(f"{folder} has no split {split!r}; it has {', '.join(sorted(map(str, saved)))}")
            saved = saved[split]
        rows = saved.to_list()
    except DataError:
        raise
    # Missing files are OSErrors; cut Arrow files and broken JSON are ValueErrors of their libraries.
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is not a readable saved dataset: {error!r}; save it again") from error
    return RawRows(source=str(folder), unit="row", numbers=list(range(len(rows))), rows=rows)


def _read_hub(name: str, split: str, config: str | None) -> RawRows:
    import datasets

    try:
        rows = datasets.load_dataset(name, config, split=split).to_list()
    except (FileNotFoundError, ConnectionError, ValueError, OSError) as error:
        raise DataError(
            f"cannot load split {split!r} of {name!r}: it is neither a local path nor a reachable hub dataset ({error})"
        ) from error
    return RawRows(source=name, unit="row", numbers=list(range(len(rows))), rows=rows)
