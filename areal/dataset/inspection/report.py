"""Inspects one split in two passes over its rows: the first finds out what columns hold and are for, the second checks
every row against that and picks an excerpt. Memory does not grow with the rows, apart from the ids already seen.

    report = inspect_split(Path("data/gsm8k"), "train", Request())
    report["mapping"]["question"]        # "question"

A report is made of JSON values; `areal.dataset.inspection.__main__` prints it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.files import ReadLimits, Record, SplitFiles, find_files, read_records
from areal.dataset.inspection.checks import RowChecks, RowProblem, final_answer
from areal.dataset.inspection.columns import Column
from areal.dataset.inspection.excerpt import NUM_CANDIDATES, ExcerptRow, candidate, choose
from areal.dataset.inspection.mapping import RowMapping, decide
from areal.dataset.inspection.roles import infer_roles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from areal.dataset.inspection.roles import Role, Roles

DEFAULT_ROWS: Final = 200_000
LIMITS: Final = ReadLimits()
"""What the rows of a source may cost that nobody has looked at yet."""
MAX_LISTED: Final = 20
"""Problems that are spelled out; all are counted."""
_PROGRESS_ROWS: Final = 5_000
_TEST_SPLITS: Final = ("test", "validation", "valid", "dev", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller decides."""

    kind: str = ""
    """"rl", "sft", "preference", "both", or "" for what fits."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role to column where the caller decides; "" means that no column has the role."""
    keep: tuple[str, ...] | None = None
    """Columns to hand to the reward; None takes id, source and tests."""
    max_rows: int = DEFAULT_ROWS
    excerpt: tuple[int, int] | None = None
    """Rows for a packaged train and test split."""


class _Problems:
    """Counts problems, keeps the first ones of each weight."""

    def __init__(self) -> None:
        self.listed: list[RowProblem] = []
        self.num_fatal = 0
        self.num_notes = 0

    def add(self, problem: RowProblem) -> None:
        count = self.num_fatal if problem.fatal else self.num_notes
        if count < MAX_LISTED:
            self.listed.append(problem)
        self.num_fatal += problem.fatal
        self.num_notes += not problem.fatal


def inspect_split(
    path: Path, split: str, request: Request, progress: Callable[[str, int], None] = lambda step, rows: None
) -> dict[str, Any]:
    """Return the report on one split, as JSON values; its keys are those of the dictionary below.

    progress: called now and then with the step ("columns" or "rows") and the rows done. Raises DataError when the data
    cannot be read at all, ConfigError for a column that does not exist.
    """
    files = find_files(path.expanduser(), split)
    problems = _Problems()
    columns, num_rows, complete = _profile(files, request.max_rows, problems, progress)
    roles = infer_roles(columns, request.columns)
    mapping, reasons = decide(columns, roles, kind=request.kind, keep=request.keep)
    if num_rows == 0:
        first = next((f": {each.place}: {each.problem}" for each in problems.listed), "")
        reasons = [f"no row of {problems.num_fatal} can be read{first}" if first else "the split has no rows"]
        mapping = None
    candidates = _check(files, request, roles, mapping, problems, progress) if mapping else []
    _type_notes(columns, mapping, problems)
    return {
        "source": files.source,
        "split": split,
        "format": files.format,
        "unit": files.unit,
        "rows": num_rows,
        "complete": complete,
        "columns": [column.as_data(num_rows) for column in columns.values()],
        "roles": {name: _role_data(role) for name, role in sorted(roles.decided.items())},
        "undecided": {name: [_role_data(role) for role in found] for name, found in sorted(roles.undecided.items())},
        "mapping": mapping.as_data() if mapping else None,
        "reasons": reasons,
        "problems": [asdict(problem) for problem in problems.listed],
        "num_fatal": problems.num_fatal,
        "num_notes": problems.num_notes,
        "excerpt": _excerpt(path.expanduser(), split, candidates, mapping, request) if mapping else None,
    }


def _profile(
    files: SplitFiles, max_rows: int, problems: _Problems, progress: Callable[[str, int], None]
) -> tuple[dict[str, Column], int, bool]:
    """Return (columns, readable rows, whether the end was reached); unreadable lines become problems."""
    columns: dict[str, Column] = {}
    num_rows = 0
    for place, record in _numbered(files, max_rows + 1, progress, "columns"):
        if record.row is None:
            problems.add(RowProblem(place=place, column="", problem=record.problem, fatal=True))
            continue
        if num_rows == max_rows:
            return columns, num_rows, False
        num_rows += 1
        for name, value in record.row.items():
            columns.setdefault(name, Column(name)).add(value, place)
            if len(columns) > LIMITS.columns:
                begin = ", ".join(map(repr, list(columns)[:5]))[:200]
                raise DataError(
                    f"{files.source}: {place}: more than {LIMITS.columns:,} columns ({begin}, ...). Keep those that a "
                    "loader needs"
                )
    return columns, num_rows, True


def _check(
    files: SplitFiles,
    request: Request,
    roles: Roles,
    mapping: RowMapping,
    problems: _Problems,
    progress: Callable[[str, int], None],
) -> list[ExcerptRow]:
    """Check every row; returns the first intact ones."""
    folder = _folder(files)
    checks = RowChecks(mapping, folder, roles.column("id"))
    candidates: list[ExcerptRow] = []
    for place, record in _numbered(files, request.max_rows, progress, "rows"):
        if record.row is None:
            continue
        found = checks.problems(record.row, place)
        for problem in found:
            problems.add(problem)
        if request.excerpt and not found and len(candidates) < NUM_CANDIDATES:
            intact = candidate(record.row, place, mapping, folder)
            candidates += [intact] if intact else []
    return candidates


def _numbered(
    files: SplitFiles, limit: int, progress: Callable[[str, int], None], step: str
) -> Iterator[tuple[str, Record]]:
    num_rows = 0
    for record in read_records(files, LIMITS):
        yield f"{files.unit} {record.number}", record
        num_rows += record.row is not None
        if num_rows % _PROGRESS_ROWS == 0:
            progress(step, num_rows)
        if num_rows >= limit:
            return


def _excerpt(
    path: Path, split: str, candidates: list[ExcerptRow], mapping: RowMapping, request: Request
) -> dict[str, Any] | None:
    if request.excerpt is None:
        return None
    held_out = _held_out(path, split, mapping) if path.is_dir() else []
    data: dict[str, Any] = {}
    for part, rows in choose(candidates, held_out, *request.excerpt)._asdict().items():
        data[part] = [{"place": row.place, "line": row.line} for row in rows]
        if mapping.final in ("hash", "boxed"):  # elsewhere the column itself is the answer that its loader finds
            for row in data[part]:
                row["final"] = final_answer(json.loads(row["line"])[mapping.answer], mapping.final)
    return data


def _held_out(path: Path, split: str, mapping: RowMapping) -> list[ExcerptRow]:
    """Return intact rows of the data's own test split; none when there is no such split."""
    for name in _TEST_SPLITS:
        if name == split:
            continue
        try:
            files = find_files(path, name)
            records = list(_numbered(files, NUM_CANDIDATES, lambda step, rows: None, ""))
        except DataError:
            continue
        folder = _folder(files)
        checks = RowChecks(mapping, folder, "")
        intact = [
            candidate(record.row, place, mapping, folder)
            for place, record in records
            if record.row is not None and not checks.problems(record.row, place)
        ]
        return [row for row in intact if row]
    return []


def _type_notes(columns: Mapping[str, Column], mapping: RowMapping | None, problems: _Problems) -> None:
    """Note columns of several types; fatal where a loader hands one on, since a table has one type per column."""
    kept = mapping.keep if mapping else ()
    checked = set(mapping.used) - set(kept) if mapping else set()
    for column in columns.values():
        if column.name in checked or len(column.filled_types) < 2:
            continue
        main = column.main_type
        for kind in column.filled_types[1:]:
            problem = f"{column.name} is {kind} in {column.types[kind]} rows and {main} in {column.types[main]}"
            problems.add(
                RowProblem(place=column.first[kind], column=column.name, problem=problem, fatal=column.name in kept)
            )


def _folder(files: SplitFiles) -> Path:
    return files.paths[0] if files.paths[0].is_dir() else files.paths[0].parent


def _role_data(role: Role) -> dict[str, Any]:
    return {"column": role.column, "confidence": role.confidence, "evidence": list(role.evidence)}
