"""Asks ruff about files of a change: bugs that a well-kept linter proves, under names and severities of ours.

    reported, note = lint({"areal/a.py": "assert (1, 'x')\n"})
    reported["areal/a.py"]      # [("constant-condition", Place(path="areal/a.py", line=1, ...))]

Ruff gets copies of the files in a folder of their own, under numbers, and no configuration: nothing of the repository
under review is run or obeyed but its `# noqa` comments. `CODES` says which of its rules count, and as which of ours.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, Final

from tooling.review.records import Place
from tooling.review.rules.linted import CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_SECONDS: Final = 60
_SELECTED: Final = ",".join(sorted({code.rstrip("0123456789") for code in CODES}))
"""Whole families, since an older ruff refuses single rules that it does not know."""
_PLACES: Final = re.compile(
    r" (?:from|on|at) line \d+| \(previously [^)]*line \d+[^)]*\)|: (?:defined|imported) .*line.*"
)
"""Line numbers in messages, which change with code above."""


def lint(texts: Mapping[str, str]) -> tuple[dict[str, list[tuple[str, Place]]], str]:
    """Return, by path, the rule's id and place of each finding; and why ruff did not look, "" when it did."""
    if not texts:
        return {}, ""
    program = ruff_program()
    if program is None:
        return {}, "ruff is not installed: its rules did not look (pip install ruff)"
    numbers = {f"{number}.py": path for number, path in enumerate(texts)}
    with tempfile.TemporaryDirectory(prefix="areal-review-") as folder:
        for name, path in numbers.items():
            (Path(folder) / name).write_text(texts[path], encoding="utf-8", errors="surrogateescape")
        rows, note = _run(program, folder, sorted(numbers))
    found: dict[str, list[tuple[str, Place]]] = {}
    for row in rows:
        rule = CODES.get(row["code"] or "")
        if rule is not None:
            path = numbers[Path(row["filename"]).name]
            message = f"{_PLACES.sub('', row['message'])} ({row['code']})"
            found.setdefault(path, []).append((rule, Place(path, row["location"]["row"], message)))
    return found, note


def ruff_program() -> str | None:
    """Return the ruff that belongs to this interpreter, else the first on PATH."""
    try:
        from ruff import find_ruff_bin  # type: ignore[import-untyped]  # ruff publishes no types

        return str(find_ruff_bin())
    except (ImportError, FileNotFoundError):
        return which("ruff")


def _run(program: str, folder: str, names: list[str]) -> tuple[list[dict[str, Any]], str]:
    command = [program, "check", "--isolated", "--no-cache", "--no-fix", "--output-format", "json"]
    command += ["--target-version", "py311", "--select", _SELECTED, "--", *names]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUFF_")}
    return reported_rows("ruff", command, folder, environment, codes=(0, 1))


def reported_rows(
    name: str,
    command: list[str],
    folder: str | Path,
    environment: dict[str, str],
    codes: tuple[int, ...] = (0,),
    *,
    may_be_silent: bool = False,
) -> tuple[list[dict[str, Any]], str]:
    """Run a checker that prints JSON and ends with one of `codes`; return its rows, and why there are none, "" where it
    looked. may_be_silent: it prints nothing where it finds nothing."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode not in codes:
            complaint = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            return [], f"{name} ended with exit code {done.returncode}: {complaint}"
        rows: list[dict[str, Any]] = json.loads(done.stdout or (b"[]" if may_be_silent else b""))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return [], f"{name} could not be run: {error}"
    return rows, ""
