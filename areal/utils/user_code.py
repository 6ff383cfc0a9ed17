"""Find out where an exception comes from that code of the user raised, so that a message can name the line.

    try:
        rows = loader(path)
    except Exception as error:
        found = blame(error, loader)
        found.text       # "KeyError: 'gold' (at my_data.py:12: answer = row['gold'])"

Only ever called with an exception in hand: runs in which nothing fails do not read this file.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

_OURS: Final = str(Path(__file__).resolve().parents[1])
_PACKAGE: Final = __name__.partition(".")[0]
_LONGEST: Final = 300
"""Characters of an exception's own message; some have a whole table in it."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Where an exception comes from."""

    text: str
    """The exception with its place and line of code, on one line."""
    place: str
    """file:line; "" when no file is known."""
    missing: str
    """Name of the module that could not be imported; "" for any other exception."""
    row: str
    """The row that it was about: "row 3", or a place that its list gives it, such as "line 4"; "" when unknown."""

    @property
    def fix_of_import(self) -> str:
        """What to do when importing a module raised it."""
        return f"install {self.missing}, or do not import it" if self.missing else "mend the module"


def blame(error: BaseException, code: object = None, *, always: bool = False) -> Blame | None:
    """Return where an exception comes from; None for one that no code of the user has a part in: a bug of ours.

    code: what was called, which counts as the user's unless it is ours, wherever it is installed. always: also of ours.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    files = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError) and error.filename:
        files.append((error.filename, error.lineno or 0))
    theirs = [place for place in files if _is_theirs(place[0])]
    module = getattr(code, "__module__", None) or getattr(type(code), "__module__", "")
    if not theirs and not always and (code is None or str(module).partition(".")[0] == _PACKAGE):
        return None
    file, line = (theirs or files or [("", 0)])[-1]
    said = " ".join(str(error).split()) if not isinstance(error, SyntaxError) else str(error.msg)
    said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
    name = type(error).__name__ if not isinstance(error, SystemExit) else "SystemExit (it ended the program)"
    place = f"{file}:{line}" if file else ""
    source = linecache.getline(file, line).strip() if file else ""
    shown = f" (at {place}{': ' if source else ''}{source})" if place else ""
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    row = _row_of([frame for frame, _ in frames])
    return Blame(text=f"{name}{': ' if said else ''}{said}{shown}", place=place, missing=missing, row=row)


def _is_theirs(file: str) -> bool:
    """Whether a file is neither of this package nor of Python nor installed. Cells of a notebook are the user's."""
    if file.startswith("<") and not file.startswith(("<ipython", "<stdin>")):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _not_theirs())


def _not_theirs() -> Iterator[Path]:
    yield Path(_OURS)
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name)).resolve()
    # Of the interpreter that a virtual environment was made with.
    yield Path(sys.base_prefix, "lib").resolve()


def _row_of(frames: Sequence[FrameType]) -> str:
    """Return the row that code was at, where a list of rows was walked through or `Dataset.map` of `datasets` did it.

    A variable of a function that is the very element of a list in the same function or around it tells which.
    """
    for depth in range(len(frames) - 1, -1, -1):
        frame = frames[depth]
        if frame.f_globals.get("__name__") == "datasets.arrow_dataset" and type(frame.f_locals.get("i")) is int:
            return f"row {frame.f_locals['i']}"
        candidates = [value for value in frame.f_locals.values() if type(value) in (dict, list, tuple)]
        owners = [owner for outer in frames[: depth + 1] for owner in outer.f_locals.values()]
        # What knows the places of its rows first; a list of the same rows knows only their indices.
        owners.sort(key=lambda owner: not hasattr(owner, "where"))
        for owner in owners:
            rows: Any = getattr(owner, "rows", owner)
            if type(rows) not in (list, tuple):
                continue
            index = next((k for k, row in enumerate(rows) if any(row is value for value in candidates)), None)
            if index is not None:
                where = getattr(owner, "where", None)
                return str(where(index)) if callable(where) else f"row {index}"
    return ""
