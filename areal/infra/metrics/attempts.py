"""Tell the attempts of a run apart in its files of JSON lines, from which nothing is ever removed.

A run that was stopped or killed goes on from a checkpoint, so some steps may be done again. Each attempt begins, in
each file that it writes, with a marker: {"attempt": 2, "first_step": 41, "run": "f3..", "time": 1790000000.0}. From
there on it speaks for step 41 and later, and lines of earlier attempts about these steps are superseded: they stay
where they are, and readers pass over them. A file without markers is one attempt.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_MARK: Final = b'{"attempt":'
_STEP: Final = re.compile(rb'\{"step":(-?\d+)[,}]')
"""How our own lines begin, so that the long ones need not be parsed to be passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process's share of a run, from the step it began with."""

    number: int
    """From 1; only attempts that logged something count."""
    first_step: int
    """Smallest step it logs: 0, or the step after that of the checkpoint it continued from."""
    run_id: str
    """The same in all attempts that continue one another, also for trackers; empty where an old file says none."""
    time: float = 0.0
    """When it began, in seconds since 1970; 0 when unknown."""

    def marker(self) -> dict[str, Any]:
        """Return the line that begins it."""
        return {"attempt": self.number, "first_step": self.first_step, "run": self.run_id, "time": self.time}


def next_attempt(path: Path, first_step: int, *, run_id: str = "") -> Attempt:
    """Return the attempt that is about to append to the file at `path`. run_id: "" takes that of `run_id_of`."""
    before = read_attempts(path)
    number = before[-1].number + 1 if before else 1
    chosen = run_id or run_id_of(path)
    return Attempt(number=number, first_step=first_step, run_id=chosen, time=round(time.time(), 3))


def run_id_of(path: Path, *, continues: bool = True) -> str:
    """Return the identity of the run that the newest attempt in a file belongs to, in lower-case hexadecimal.

    continues: whether it goes on from a checkpoint; else it begins anew and gets another identity.
    """
    before = read_attempts(path) if continues else []
    return next((one.run_id for one in reversed(before) if one.run_id), "") or secrets.token_hex(8)


def read_attempts(path: Path) -> list[Attempt]:
    """Return the attempts that wrote a file, oldest first; none for a file that is empty or missing."""
    found: list[Attempt] = []
    if not path.is_file():
        return found
    with path.open("rb") as lines:
        for line in lines:
            if (attempt := _parse_marker(line)) is not None:
                found.append(attempt)
            elif not found and line.endswith(b"\n"):
                found.append(Attempt(number=1, first_step=0, run_id=""))
    return found


def current_lines(path: Path, attempt: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a file that no later attempt supersedes, without markers; also those that are torn.

    attempt: leave later ones out, to see the file as this attempt left it; None takes all.
    """
    known = read_attempts(path)
    chosen = [one for one in known if attempt is None or one.number <= attempt]
    limits = _limits(chosen)
    begun = 0
    with path.open("rb") as lines:
        for line in lines:
            is_marker = _parse_marker(line) is not None
            begun = begun + 1 if is_marker else max(begun, 1)
            if begun > len(chosen) and known:
                return
            limit = limits[begun - 1] if limits else math.inf
            if not is_marker and (limit == math.inf or _step_of(line) < limit):
                yield line


def _limits(attempts: Sequence[Attempt]) -> list[float]:
    """Of each attempt, the step from which a later one speaks."""
    later = itertools.accumulate([math.inf, *(one.first_step for one in reversed(attempts))], min)
    return list(later)[-2::-1]


def _parse_marker(line: bytes) -> Attempt | None:
    if not line.startswith(_MARK) or not line.endswith(b"\n"):
        return None
    try:
        content = json.loads(line)
        return Attempt(
            number=int(content["attempt"]),
            first_step=int(content["first_step"]),
            run_id=str(content.get("run", "")),
            time=float(content.get("time", 0.0)),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _step_of(line: bytes) -> float:
    """Step of a line; minus infinity for one that says none, which no attempt can supersede."""
    if match := _STEP.match(line):
        return int(match[1])
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return -math.inf
    return step if isinstance(step, int) else -math.inf
