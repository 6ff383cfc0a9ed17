"""What a program is tried on: cases of a row, read and checked, and whether what a program gave is what was expected.

    {"input": "3 4\\n", "output": "7\\n"}               a whole program: standard input and output
    {"arguments": [3, 4], "result": 7}                 a function: JSON values
    {"arguments": [3], "results": [[7], 7]}            the same, with several results that count as right

A column `cases` holds a list of these, or the JSON text of one, which is what `areal.dataset.code` writes: columns of a
dataset have one type, and arguments have many. All cases of a row are of the same kind.

Outputs are compared as judges do, by `OutputComparison`:

    tokens    words in order; blanks and line breaks do not matter (the default)
    lines     line by line without blanks at their ends and without blank lines at the end
    exact     every character

With a tolerance t, two tokens (or two numbers in results) that are both finite decimal numbers are equal when they
differ by at most t, or by at most t times the expected one: as testlib's `doubleCompare` does.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

from areal.api import ConfigError

COMPARISONS: Final = ("exact", "lines", "tokens")
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_MAX_NUMBER: Final = 400
"""Longer texts are compared as texts: converting them costs time."""
_SHAPES: Final = "{'input', 'output'} or {'arguments', 'result'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCase:
    """One input with what is expected for it."""

    stdin: bytes
    """Standard input, or the arguments as a JSON list."""
    expected: str | None
    """The output; None for a function's case, and where only a checker knows."""
    results: tuple[Any, ...] = ()
    """Results that count as right."""

    @property
    def calls(self) -> bool:
        """Whether it calls a function."""
        return self.expected is None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """When two outputs are the same."""

    kind: str = "tokens"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in COMPARISONS:
            raise ConfigError(f"compare is {self.kind!r}, expected one of {', '.join(COMPARISONS)}")
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise ConfigError(f"float_tolerance is {self.tolerance!r}, expected a number of at least 0")
        if self.tolerance is not None and self.kind == "exact":
            raise ConfigError("float_tolerance has no effect with compare: exact; use tokens or lines")

    def outputs_equal(self, found: str, expected: str) -> bool:
        """Return whether an output is the expected one."""
        if self.kind == "exact":
            return found == expected
        if self.kind == "tokens":
            return self._tokens_equal(found.split(), expected.split())
        ours, theirs = _lines(found), _lines(expected)
        if self.tolerance is None or len(ours) != len(theirs):
            return ours == theirs
        return all(self._tokens_equal(a.split(" "), b.split(" ")) for a, b in zip(ours, theirs, strict=True))

    def results_equal(self, found: Any, expected: Any) -> bool:
        """Return whether a JSON value is the expected one; true is not 1, and 1.0 is 1."""
        if isinstance(found, bool) or isinstance(expected, bool):
            return found is expected
        if isinstance(found, int | float) and isinstance(expected, int | float):
            return found == expected or (self.tolerance is not None and self._close(found, expected))
        if isinstance(found, list) and isinstance(expected, list):
            return len(found) == len(expected) and all(map(self.results_equal, found, expected))
        if isinstance(found, dict) and isinstance(expected, dict):
            return found.keys() == expected.keys() and all(self.results_equal(found[k], expected[k]) for k in expected)
        return type(found) is type(expected) and found == expected

    def _tokens_equal(self, found: list[str], expected: list[str]) -> bool:
        if found == expected:
            return True
        if self.tolerance is None or len(found) != len(expected):
            return False
        return all(a == b or self._numbers_equal(a, b) for a, b in zip(found, expected, strict=True))

    def _numbers_equal(self, found: str, expected: str) -> bool:
        texts = (found, expected)
        if any(len(text) > _MAX_NUMBER or _NUMBER.fullmatch(text) is None for text in texts):
            return False
        return self._close(float(found), float(expected))

    def _close(self, found: float, expected: float) -> bool:
        assert self.tolerance is not None
        try:
            difference = abs(float(found) - float(expected))
        except OverflowError:
            return False
        return difference <= self.tolerance * max(1.0, abs(float(expected)))


def read_cases(value: Any, *, function: str) -> list[ProgramCase]:
    """Return the cases of a row. function: the name to call, "" for whole programs.

    Raises ValueError that says what is wrong with the row.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the row's cases are not JSON: {error}") from error
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"the row's cases are {value!r:.100}, expected a list of {_SHAPES}")
    cases = [_read_case(number, case) for number, case in enumerate(value, 1)]
    if any(case.calls is not bool(function) for case in cases):
        found = "calls" if cases[0].calls else "standard input"
        raise ValueError(f"the row's cases give {found}, and fn_name is {function!r}: a row has both or neither")
    return cases


def _read_case(number: int, case: Any) -> ProgramCase:
    match case:
        case {"input": str(stdin), "output": str(expected)}:
            return ProgramCase(stdin=stdin.encode("utf-8", "surrogateescape"), expected=expected)
        case {"arguments": list(arguments), "results": list(results)} if results:
            return ProgramCase(stdin=json.dumps(arguments).encode(), expected=None, results=tuple(results))
        case {"arguments": list(arguments), "result": result}:
            return ProgramCase(stdin=json.dumps(arguments).encode(), expected=None, results=(result,))
    raise ValueError(f"case {number} of the row is {case!r:.100}, expected {_SHAPES}")


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
