"""`python -m areal.dataset.inspection PATH`: what a dataset holds, for people or (`--json`) for programs.

    python -m areal.dataset.inspection data/gsm8k --split train
    python -m areal.dataset.inspection rows.csv --question-column q --answer-column gold --json

Exit codes: 0 the report was written (it may list problems), 2 wrong arguments, 3 data that cannot be read. With --json
there is exactly one object on stdout, also on failure: {"ok": false, "error": "...", "code": 3}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, DataError
from areal.dataset.inspection.report import DEFAULT_ROWS, Request, inspect_split
from areal.dataset.inspection.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence


MEMORY_BYTES: Final = 6 << 30
"""Most memory of the process; rows within the limits of reading take a small part of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    given = {role: value for role in ROLES if (value := getattr(options, f"{role}_column")) is not None}
    request = Request(
        kind=options.kind,
        columns=given,
        keep=options.keep_columns,
        max_rows=options.rows,
        excerpt=tuple(options.excerpt) if options.excerpt else None,
    )
    try:
        report = inspect_split(Path(options.path), options.split, request, _show_progress)
    except ArealError as error:
        return _refuse(str(error), error.exit_code, as_json=options.json)
    except MemoryError:
        problem = f"{options.path}: reading it takes more than {MEMORY_BYTES >> 30} GiB of memory; a JSON array is "
        problem += "held as a whole, JSON lines are not. Inspect a part of it"
        return _refuse(problem, DataError.exit_code, as_json=options.json)
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
    if options.json:
        _write_json({"ok": True, **report})
    else:
        sys.stdout.write("\n".join(_lines(report)) + "\n")
    return 0


def _refuse(problem: str, code: int, *, as_json: bool) -> int:
    if as_json:
        _write_json({"ok": False, "error": problem, "code": code})
    else:
        sys.stderr.write(f"{_printable(problem)}\n")
    return code


def limit_memory() -> None:
    """Bound what this process may allocate, where the system can: the last line behind `ReadLimits`."""
    try:
        import resource
    except ImportError:  # Windows
        return
    # Of the address space, Linux and macOS bound different parts; mapped libraries do not count here.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ValueError, OSError):  # a harder bound is there already
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m areal.dataset.inspection", description=__doc__.splitlines()[0])
    parser.add_argument("path", help="file or folder (JSON lines, JSON, CSV, TSV, parquet, save_to_disk)")
    parser.add_argument("--split", default="train", help="split to read (default: train)")
    parser.add_argument(
        "--rows", type=_positive, default=DEFAULT_ROWS, help=f"read at most this many rows (default: {DEFAULT_ROWS})"
    )
    parser.add_argument(
        "--kind", default="", choices=["", "rl", "sft", "preference", "both"], help="what the rows are wanted for"
    )
    for role in ROLES:
        parser.add_argument(f"--{role}-column", metavar="NAME", help=f"column of the {role}; '' for none")
    parser.add_argument(
        "--keep-columns",
        type=_names,
        metavar="JSON",
        help='columns to hand to the reward, e.g. ["level"] (default: id, source, tests)',
    )
    parser.add_argument(
        "--excerpt", type=_positive, nargs=2, metavar=("TRAIN", "TEST"), help="add this many short intact rows"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _names(text: str) -> tuple[str, ...]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise argparse.ArgumentTypeError('expected a list of names such as ["level"]')
    return tuple(names)


def _write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def _show_progress(step: str, rows: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{step}: {rows} rows")
        sys.stderr.flush()


def _lines(report: dict[str, Any]) -> list[str]:
    rows = f"{report['rows']} rows" if report["complete"] else f"the first {report['rows']} rows"
    lines = [f"{report['source']}: {report['format']}, {rows} of split {report['split']}", "", "columns"]
    used = {role["column"]: name for name, role in report["roles"].items()}
    for column in report["columns"]:
        types = ", ".join(f"{count} {kind}" for kind, count in column["types"].items())
        gaps = "".join(f", {column[gap]} {gap}" for gap in ("missing", "empty") if column[gap])
        lines.append(f"  {_printable(column['name'])} [{used.get(column['name'], '-')}]: {types}{gaps}")
        lines += [f"      e.g. {_printable(example)}" for example in column["examples"][:1]]
    mapping = report["mapping"]
    if mapping is None:
        lines += ["", "no mapping", *(f"  {reason}" for reason in report["reasons"]), ""]
    else:
        lines += ["", f"mapping: {mapping['form']}, for {' and '.join(mapping['kinds'])}"]
        for key, value in mapping.items():
            if value and key not in ("form", "kinds"):
                names = ", ".join(value) if isinstance(value, list | tuple) else value
                lines.append(f"  {key}: {_printable(names)}")
        lines.append("")
    lines.append(f"{report['num_fatal']} problems that a loader refuses, {report['num_notes']} notes")
    for problem in report["problems"]:
        lines.append(f"  {'!' if problem['fatal'] else '-'} {problem['place']}: {_printable(problem['problem'])}")
    return lines


def _printable(text: str) -> str:
    """Escape control characters: those of data must not reach a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


if __name__ == "__main__":
    limit_memory()
    raise SystemExit(main())
