"""Finds the files of one split and walks through their rows one by one, with the place of each: JSON lines (plain or
gzip), JSON arrays, CSV, TSV, parquet, saved Hugging Face datasets.

    files = find_files(Path("data"), "train")
    for record in read_records(files): ...

Knows nothing about what rows mean, keeps no row, and runs nothing that data says: no dataset scripts, no pickle. A
line that cannot be read is a record with a problem, not an exception, so that all of them can be reported at once.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from areal.api import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Format = Literal["jsonl", "json", "csv", "tsv", "parquet", "saved"]

SUFFIXES: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
"""Endings of file names, in the order in which a folder is searched for a split."""

_BATCH: Final = 1024
_MAX_FIELD: Final = 2**31 - 1
"""Longest CSV field; the module's own limit of 128 Ki would refuse long solutions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFiles:
    """One split as it lies on disk.

    Example: `SplitFiles(format="jsonl", paths=(Path("data/train.jsonl"),), split="train", unit="line")`.
    """

    format: Format
    paths: tuple[Path, ...]
    split: str
    unit: str
    """What the numbers of records count: "line" (from 1) of a text file, or "row" (from 0) of a table."""

    @property
    def source(self) -> str:
        """For messages."""
        first = str(self.paths[0])
        return first if len(self.paths) == 1 else f"{first} .. {self.paths[-1].name}"


class Record(NamedTuple):
    """One row, or why it cannot be read (`row` is then None)."""

    number: int
    row: dict[str, Any] | None
    problem: str = ""


def find_files(path: Path, split: str) -> SplitFiles:
    """Return the files of a split.

    path: a file (then `split` only matters for messages); a folder with `<split>.<suffix>`, `<split>-*.parquet` or a
    sub-folder `data` with those; or a folder written by `save_to_disk`. Raises DataError when it holds no such split.
    """
    if path.is_file():
        return _file(path, split)
    if not path.is_dir():
        raise DataError(f"no dataset at '{path}': expected a file, or a folder with {split}.jsonl or {split}.parquet")
    for folder in (path, path / "data"):
        for suffix in SUFFIXES:
            if (folder / f"{split}{suffix}").is_file():
                return _file(folder / f"{split}{suffix}", split)
        shards = tuple(sorted(folder.glob(f"{split}-*.parquet")))
        if shards:
            return SplitFiles(format="parquet", paths=shards, split=split, unit="row")
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return SplitFiles(format="saved", paths=(path,), split=split, unit="row")
    present = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
    raise DataError(
        f"{path} has no split {split!r}: expected {split}.jsonl[.gz], {split}.parquet, {split}.json, {split}.csv, "
        f"{split}.tsv or a saved dataset, found {present}"
    )


def read_records(files: SplitFiles) -> Iterator[Record]:
    """Every row of the split in order; blank lines are skipped but counted. Raises DataError for a damaged file."""
    for path in files.paths:
        if files.format == "jsonl":
            yield from _json_lines(path)
        elif files.format == "json":
            yield from _json_array(path)
        elif files.format in ("csv", "tsv"):
            yield from _delimited(path, "," if files.format == "csv" else "\t")
    if files.format == "parquet":
        yield from (Record(number, row) for number, row in enumerate(_parquet_rows(files.paths)))
    if files.format == "saved":
        yield from (Record(number, row) for number, row in enumerate(_saved_rows(files.paths[0], files.split)))


def _file(path: Path, split: str) -> SplitFiles:
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")
    if not suffix:
        raise DataError(f"{path}: expected a file named {', '.join(f'*{suffix}' for suffix in SUFFIXES)}")
    form = SUFFIXES[suffix]
    if form == "json":
        with path.open("rb") as stream:
            texts = (line.removeprefix(b"\xef\xbb\xbf").strip() for line in stream)
            if not next(filter(None, texts), b"").startswith(b"["):
                form = "jsonl"
    unit = "line" if form in ("jsonl", "csv", "tsv") else "row"
    return SplitFiles(format=form, paths=(path,), split=split, unit=unit)


def _lines(path: Path) -> Iterator[bytes]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            yield from stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); download or write it again") from error


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            yield _checked(number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")))
        except UnicodeDecodeError as error:
            yield Record(number, None, f"not UTF-8 (byte {line[error.start]:#04x} at column {error.start + 1})")
        except json.JSONDecodeError as error:
            yield Record(number, None, f"not JSON ({error.msg} at column {error.colno})")
        except (RecursionError, ValueError) as error:  # nested thousands of levels; a number of thousands of digits
            yield Record(number, None, f"not readable as JSON ({error})")


def _json_array(path: Path) -> Iterator[Record]:
    try:
        rows = json.loads(path.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path} is not readable as JSON ({error})") from error
    for number, row in enumerate(rows):
        yield _checked(number, row)


def _checked(number: int, row: Any) -> Record:
    if not isinstance(row, dict):
        return Record(number, None, f"a JSON object expected, found {type(row).__name__}")
    return Record(number, row)


def _delimited(path: Path, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(_MAX_FIELD)
    # Bytes that are not UTF-8 become lone surrogates, so that the record which holds them can be named.
    decoded = (line.decode("utf-8", "surrogateescape") for line in _lines(path))
    reader = csv.reader(decoded, delimiter=delimiter, strict=True)
    header: list[str] = []
    begin = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}: line {begin}: not {path.suffix[1:].upper()} ({error})") from error
        if fields is None:
            return
        if not fields:
            pass  # a blank line
        elif not header:
            header = [name.removeprefix("\ufeff").strip() for name in fields]
            where = f"{path}: line {begin}"
            if len(header) == 1 and any(other in header[0] for other in ";\t,"):
                raise DataError(f"{where}: one column {header[0]!r:.60}: expected columns separated by {delimiter!r}")
            if "" in header or len(set(header)) != len(header):
                raise DataError(f"{where}: column names are empty or repeated: {', '.join(map(repr, header))[:200]}")
        elif len(fields) != len(header):
            yield Record(begin, None, f"{len(fields)} fields, expected {len(header)} ({', '.join(header)})")
        else:
            try:
                "".join(fields).encode()
                yield Record(begin, dict(zip(header, fields, strict=True)))
            except UnicodeEncodeError as error:
                yield Record(begin, None, f"not UTF-8 (byte {ord(error.object[error.start]) - 0xDC00:#04x})")
        begin = reader.line_num + 1


def _parquet_rows(paths: tuple[Path, ...]) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as table:
                for batch in table.iter_batches(batch_size=_BATCH):
                    yield from batch.to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is not a readable parquet file: {error}") from error


def _saved_rows(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
        if isinstance(saved, datasets.DatasetDict):
            if split not in saved:
                raise DataError(f"{folder} has no split {split!r}; it has {', '.join(sorted(map(str, saved)))}")
            saved = saved[split]
        for batch in saved.with_format("arrow").iter(batch_size=_BATCH):
            yield from batch.to_pylist()
    except DataError:
        raise
    # Missing files are OSErrors; cut Arrow files and broken JSON are ValueErrors of their libraries.
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is not a readable saved dataset: {error!r}; save it again") from error
