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
import itertools
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from areal.api import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
_SMALL_BATCH: Final = 32
"""Rows of a table that are read at once under limits: a few megabytes of parquet can stand for gigabytes."""
_SHOWN_COLUMNS, _MAX_SHOWN = 5, 200
"""Columns, and characters of their names, in an error about too many."""
_MAX_FIELD: Final = 2**31 - 1
"""Longest CSV field; the module's own limit of 128 Ki would refuse long solutions."""


_CHUNK: Final = 1 << 20
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What rows of an unknown source may cost. Whatever is beyond is a DataError, before memory is taken for it.

    Loaders read without limits: their data were inspected, and they keep all rows anyway.
    """

    row_bytes: int = 32 * _MIB
    """Of one line, one CSV field, or one row of a table."""
    columns: int = 1_000
    """Of all rows together."""
    depth: int = 64
    """Lists and objects within each other, the row itself included."""
    unpacked_bytes: int = 4096 * _MIB
    """Of one compressed file."""


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


def read_records(files: SplitFiles, limits: ReadLimits | None = None) -> Iterator[Record]:
    """Every row of the split in order; blank lines are skipped but counted. Raises DataError for a damaged file, and
    for what is beyond the limits."""
    for path in files.paths:
        if files.format == "jsonl":
            yield from _json_lines(path, limits)
        elif files.format == "json":
            yield from _json_array(path, limits)
        elif files.format in ("csv", "tsv"):
            yield from _delimited(path, "," if files.format == "csv" else "\t", limits)
    if files.format == "parquet":
        yield from (Record(number, row) for number, row in enumerate(_parquet_rows(files.paths, limits)))
    if files.format == "saved":
        yield from (Record(number, row) for number, row in enumerate(_saved_rows(files.paths[0], files.split, limits)))


def _file(path: Path, split: str) -> SplitFiles:
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")
    if not suffix:
        raise DataError(f"{path}: expected a file named {', '.join(f'*{suffix}' for suffix in SUFFIXES)}")
    form = SUFFIXES[suffix]
    if form == "json":
        with path.open("rb") as stream:
            if not stream.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                form = "jsonl"
    unit = "line" if form in ("jsonl", "csv", "tsv") else "row"
    return SplitFiles(format=form, paths=(path,), split=split, unit=unit)


def _lines(path: Path, limits: ReadLimits | None) -> Iterator[bytes]:
    opener = gzip.open if path.suffix == ".gz" else open
    longest = -1 if limits is None else limits.row_bytes + 1
    num_bytes = 0
    try:
        with opener(path, "rb") as stream:
            for number in itertools.count(1):
                line = stream.readline(longest)
                if not line:
                    return
                num_bytes += len(line)
                if limits is not None and len(line) > limits.row_bytes:
                    raise DataError(f"{path}: line {number} is longer than {_size(limits.row_bytes)}")
                if limits is not None and path.suffix == ".gz" and num_bytes > limits.unpacked_bytes:
                    raise DataError(
                        f"{path} unpacks to more than {_size(limits.unpacked_bytes)} (line {number}); "
                        "inspect a part of it, e.g. its first lines"
                    )
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); download or write it again") from error


def _size(num_bytes: int) -> str:
    return f"{num_bytes // _MIB} MiB" if num_bytes >= _MIB else f"{num_bytes} bytes"


def _json_lines(path: Path, limits: ReadLimits | None) -> Iterator[Record]:
    for number, line in enumerate(_lines(path, limits), start=1):
        if not line.strip():
            continue
        try:
            yield _checked(number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")), limits)
        except UnicodeDecodeError as error:
            yield Record(number, None, f"not UTF-8 (byte {line[error.start]:#04x} at column {error.start + 1})")
        except json.JSONDecodeError as error:
            yield Record(number, None, f"not JSON ({error.msg} at column {error.colno})")
        except RecursionError:
            yield Record(number, None, _too_deep(limits))
        except ValueError as error:  # a number of thousands of digits
            yield Record(number, None, f"not readable as JSON ({error})")


def _json_array(path: Path, limits: ReadLimits | None) -> Iterator[Record]:
    content = path.read_bytes()
    try:
        rows = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise DataError(f"{path}:{line}: not UTF-8 (byte {content[error.start]:#04x} at column {column})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise DataError(f"{path}: {_too_deep(limits)}") from error
    except ValueError as error:
        raise DataError(f"{path} is not readable as JSON ({error})") from error
    for number, row in enumerate(rows):
        yield _checked(number, row, limits)


def _checked(number: int, row: Any, limits: ReadLimits | None) -> Record:
    if not isinstance(row, dict):
        return Record(number, None, f"a JSON object expected, found {type(row).__name__}")
    if limits is not None and _is_deeper(row, limits.depth):
        return Record(number, None, _too_deep(limits))
    return Record(number, row)


def _too_deep(limits: ReadLimits | None) -> str:
    most = f"; at most {limits.depth} levels are read" if limits is not None else ""
    return f"lists or objects are nested too deeply{most}"


def _is_deeper(row: dict[str, Any], depth: int) -> bool:
    level: list[Any] = [row]
    for _ in range(depth):
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _refuse_wide(path: Path, names: Sequence[str], limits: ReadLimits | None, where: str = "") -> None:
    """Raise DataError for more columns than anybody names."""
    if limits is not None and len(names) > limits.columns:
        begin = ", ".join(map(repr, names[:_SHOWN_COLUMNS]))[:_MAX_SHOWN]
        raise DataError(
            f"{path}{where}: {len(names):,} columns ({begin}, ...); at most {limits.columns:,} are read. Keep those "
            "that a loader needs"
        )


def _delimited(path: Path, delimiter: str, limits: ReadLimits | None) -> Iterator[Record]:
    longest = _MAX_FIELD if limits is None else limits.row_bytes
    csv.field_size_limit(longest)
    # Bytes that are not UTF-8 become lone surrogates, so that the record which holds them can be named.
    decoded = (line.decode("utf-8", "surrogateescape") for line in _lines(path, limits))
    reader = csv.reader(decoded, delimiter=delimiter, strict=True)
    header: list[str] = []
    begin = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            problem = str(error)
            if "field limit" in problem or "unexpected end" in problem:
                problem = f"a quotation mark that opens here or below is never closed: {problem}"
            raise DataError(f"{path}: line {begin}: not {path.suffix[1:].upper()} ({problem})") from error
        if fields is None:
            return
        if not fields:
            pass  # a blank line
        elif not header:
            header = [name.removeprefix("\ufeff").strip() for name in fields]
            where = f"{path}: line {begin}"
            _refuse_wide(path, header, limits, f": line {begin}")
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


def _parquet_rows(paths: tuple[Path, ...], limits: ReadLimits | None) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as table:
                _refuse_wide(path, table.schema_arrow.names, limits)
                for batch in table.iter_batches(batch_size=_BATCH if limits is None else _SMALL_BATCH):
                    yield from batch.to_pylist() if limits is None else _limited_rows(path, batch, limits)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is not a readable parquet file: {error}") from error


def _limited_rows(path: Path, batch: Any, limits: ReadLimits) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, long ones one by one: many may share one long text of a dictionary."""
    if batch.nbytes <= _MIB:
        yield from batch.to_pylist()
        return
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        if row.nbytes > limits.row_bytes:
            raise DataError(f"{path}: a row is longer than {_size(limits.row_bytes)}")
        yield from row.to_pylist()


def _saved_rows(folder: Path, split: str, limits: ReadLimits | None) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
        if isinstance(saved, datasets.DatasetDict):
            if split not in saved:
                raise DataError(f"{folder} has no split {split!r}; it has {', '.join(sorted(map(str, saved)))}")
            saved = saved[split]
        _refuse_wide(folder, saved.column_names, limits)
        for batch in saved.with_format("arrow").iter(batch_size=_BATCH if limits is None else _SMALL_BATCH):
            yield from batch.to_pylist() if limits is None else _limited_rows(folder, batch, limits)
    except DataError:
        raise
    # Missing files are OSErrors; cut Arrow files and broken JSON are ValueErrors of their libraries.
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is not a readable saved dataset: {error!r}; save it again") from error
