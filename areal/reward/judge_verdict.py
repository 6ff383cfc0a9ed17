r"""Reads the number a judge gives out of what it writes; anything but a clear number in range is an error.

    VerdictForm(kind="score", scale=10).read("Right.\nSCORE: 7")                    -> 0.7
    VerdictForm(kind="number", scale=10).read("I give it 7.")                       -> 0.7
    VerdictForm(kind="json", scale=10).read('... {"why": "...", "score": 7}')       -> 0.7
    VerdictForm(kind="boxed", scale=10).read(r"... \boxed{7}")                      -> 0.7
    VerdictForm(kind="regex", pattern=r"Verdict: (\w+)", labels={"yes": 1.0, "no": 0.0}).read("Verdict: YES")  -> 1.0

score: the last line is "SCORE: n". number: the last number. json: the last object with the key. boxed: the last box.
regex: group 1 of the last match. labels: what words stand for, without regard to case, for every kind but `score`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError
from areal.reward.boxed import last_boxed

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDINGS: Final = {
    "score": "end with one line of exactly this form, n being {what}:\nSCORE: n",
    "number": "end with {what}, alone on the last line.",
    "json": 'end with one JSON object {{"{key}": n}}, n being {what}.',
    "boxed": "end with \\boxed{{n}}, n being {what}.",
    "regex": "",
}
KINDS: Final = tuple(sorted(_ENDINGS))
_SCORE: Final = re.compile(r"SCORE:[ \t]*(\d{1,6}(?:\.\d{1,6})?)", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_LAST_NUMBER: Final = re.compile(r"(?<![\w.])-?\d{1,6}(?:\.\d{1,6})?(?![\w]|\.\d)", re.ASCII)
_WINDOW: Final = 4096
"""Characters at the end of an answer that are searched."""


class UnreadableVerdictError(ValueError):
    """The text holds no number of the agreed form and range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictForm:
    """The agreed form of a judge's verdict."""

    kind: str = "score"
    scale: float = 10
    pattern: str = ""
    key: str = "score"
    labels: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"parse is {self.kind!r}, expected one of {', '.join(KINDS)}")
        if not 0 < self.scale < math.inf:
            raise ConfigError(f"scale is {self.scale!r}, expected a number above 0")
        if bool(self.pattern) is not (self.kind == "regex"):
            raise ConfigError(
                f"parse is {self.kind!r} and pattern is {self.pattern!r}; a pattern belongs to parse: regex"
            )
        if any(not 0 <= value <= self.scale for value in self.labels.values()):
            raise ConfigError(f"labels is {dict(self.labels)!r}, expected numbers from 0 to scale ({self.scale:g})")
        if self.kind == "regex":
            try:
                groups = re.compile(self.pattern).groups
            except re.error as error:
                raise ConfigError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error
            if groups != 1:
                raise ConfigError(f"pattern {self.pattern!r} has {groups} groups, expected one around the verdict")

    @property
    def ending(self) -> str:
        """What to tell the judge about the end of its answer; "" for a pattern, which the rubric has to explain."""
        words = ", or ".join([f"a number from 0 (worst) to {self.scale:g} (best)", *self.labels])
        return _ENDINGS[self.kind].format(what=words, key=self.key)

    def read(self, text: str) -> float:
        """Return the verdict divided by the scale, from 0.0 to 1.0. Raises UnreadableVerdictError."""
        found = self._find(text.strip())
        if self.kind != "score":
            meant = {label.lower(): value for label, value in self.labels.items()}.get(found.strip().lower())
            if meant is not None:
                return meant / self.scale
        if _NUMBER.fullmatch(found.strip()) is None or not 0 <= float(found) <= self.scale:
            options = "".join(f" or {label!r}" for label in self.labels)
            raise UnreadableVerdictError(f"gave {found[:100]!r}, expected a number from 0 to {self.scale:g}{options}")
        return float(found) / self.scale

    def _find(self, text: str) -> str:
        found: str | None = None
        window = text[-_WINDOW:]
        if self.kind == "score":
            last = text.rpartition("\n")[2].strip()
            match = _SCORE.fullmatch(last)
            if match is None:
                raise UnreadableVerdictError(f"ended with {last[:100]!r}, expected a line 'SCORE: n'")
            return match[1]
        if self.kind == "number":
            words = {label.lower() for label in self.labels}
            last = text.rpartition("\n")[2].strip().strip(".*")
            found = last if last.lower() in words else next(reversed(_LAST_NUMBER.findall(window)), None)
        elif self.kind == "boxed":
            found = last_boxed(text)
        elif self.kind == "json":
            found = self._last_object(window)
        else:
            match = None
            for match in re.finditer(self.pattern, window):  # noqa: B007 - the last one is wanted
                pass
            found = match[1] if match is not None else None
        if not found:
            raise UnreadableVerdictError(f"ended with {text[-100:]!r}, expected a verdict of the form {self.kind!r}")
        return found

    def _last_object(self, text: str) -> str | None:
        decoder = json.JSONDecoder()
        start = text.rfind("{")
        for _ in range(64):
            if start < 0:
                return None
            try:
                value, _end = decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict) and self.key in value and not isinstance(value[self.key], bool):
                return str(value[self.key])
            start = text.rfind("{", 0, start)
        return None
