"""Append-only JSON-lines files that survive being killed: whole lines or nothing; a torn tail is dropped on reopening.

Every line is one object with an integer "step". Numbers JSON cannot say are written as "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from areal.utils.atomic import atomic_write
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

logger = getLogger(__name__)

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class JsonLines:
    """One file, opened for appending.

    A line is handed to the operating system in a single write before `append` returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_tail(path)
        self._descriptor = self._open()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises OSError (disk full, ...) and ValueError after `close`."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path}: append after close")
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        start = os.fstat(self._descriptor).st_size
        written = os.write(self._descriptor, line)
        if written != len(line):  # A full disk may take a part: take it back, so that later lines stay readable.
            os.ftruncate(self._descriptor, start)
            raise OSError(f"{self.path}: wrote {written} of {len(line)} bytes; is the disk full?")

    def drop_from(self, step: int) -> int:
        """Remove all lines of `step` and later, all at once; returns how many. For a run that continues at `step`."""
        kept, dropped = [], 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            record = parse_line(line)
            if record is None or record["step"] >= step:
                dropped += 1
            else:
                kept.append(line)
        if dropped:
            os.close(self._descriptor)
            try:
                atomic_write(self.path, b"".join(kept))
            finally:
                self._descriptor = self._open()
        return dropped

    def close(self) -> None:
        """Flush to disk and close. Idempotent."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Return records of a file, in order; lines that are torn or not records are skipped and their number is logged."""
    bad = 0
    with path.open("rb") as lines:
        for line in lines:
            record = parse_line(line)
            if record is None:
                bad += bool(line.strip())
            else:
                yield record
    if bad:
        logger.warning("%s: skipped %d lines that are not complete records", path, bad)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line, None when it is torn, has no integer step, or is not an object."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and type(record.get("step")) is int else None


def encode_number(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    number = float(value)
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def decode_number(value: Any) -> float | None:
    """Inverse of `encode_number`; None for anything else."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _drop_torn_tail(path: Path) -> None:
    """Cut off what a killed writer left after the last newline."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            logger.warning("%s: removed %d bytes of a line that was never finished", path, size - end)
            file.truncate(end)
