"""Find where the strings of a TOML document stand. Values come from `tomllib`; this finds their places only.

Written by hand because an edit must leave every other byte as it is, and an error must name the line. Documents are
parsed by `tomllib` first, so that the scanner meets valid text only.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

Path = tuple[str | int, ...]
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"[ \t]*(?:(?P<bare>[A-Za-z0-9_-]+)|(?P<quoted>\"(?:[^\"\\]|\\.)*\"|'[^']*'))[ \t]*")
_STRING = re.compile(
    r"\"\"\"(?P<a>(?:[^\\]|\\.)*?\"{0,2})\"\"\"(?!\")|'''(?P<b>.*?'{0,2})'''(?!')"
    r"|\"(?P<c>(?:[^\"\\\n]|\\.)*)\"|'(?P<d>[^'\n]*)'",
    re.DOTALL,
)
_OTHER = re.compile(r"[^,\]}#\n]*")


@dataclass(frozen=True, slots=True)
class TomlString:
    """A string value."""

    path: Path
    """Keys and indices: ("project", "dependencies", 0)."""
    value: str
    start: int
    """Span of what is between the quotes, in characters."""
    end: int
    line: int
    literal: bool
    """Whether the text between the quotes is the value (no escapes): only then it can be edited."""


def scan_toml(text: str) -> list[TomlString]:
    """Return the strings of a valid document. Raises tomllib.TOMLDecodeError for others."""
    tomllib.loads(text)
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.strings: list[TomlString] = []
        self.arrays: dict[Path, int] = {}
        self._line_at = (0, 1)

    def scan(self) -> list[TomlString]:
        table: Path = ()
        while self._skip() < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text[self.at] == "[":
                table = self._header(1)
            else:
                self._pair(table)
        return self.strings

    def _skip(self) -> int:
        matched = _SPACE.match(self.text, self.at)
        self.at = matched.end() if matched else self.at
        return self.at

    def _line(self) -> int:
        """Count lines on from the last call: positions only grow."""
        position, line = self._line_at
        line += self.text.count("\n", position, self.at)
        self._line_at = (self.at, line)
        return line

    def _header(self, brackets: int) -> Path:
        self.at += brackets
        parts = self._key()
        self.at = self.text.index("]" * brackets, self.at) + brackets
        path: Path = ()
        for part in parts[:-1]:
            path = self._current((*path, part))
        path += parts[-1:]
        if brackets == 2:
            self.arrays[path] = self.arrays.get(path, -1) + 1
        return self._current(path)

    def _current(self, path: Path) -> Path:
        return (*path, self.arrays[path]) if path in self.arrays else path

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while matched := _KEY.match(self.text, self.at):
            self.at = matched.end()
            quoted = matched["quoted"]
            parts.append(tomllib.loads(f"x={quoted}")["x"] if quoted else matched["bare"])
            if self.at >= len(self.text) or self.text[self.at] != ".":
                break
            self.at += 1
        return tuple(parts)

    def _pair(self, table: Path) -> None:
        path = table + self._key()
        self.at = self.text.index("=", self.at) + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        letter = self.text[self.at]
        if letter in "\"'":
            self._string(path)
        elif letter == "[":
            self.at += 1
            index = 0
            while self._skip() < len(self.text) and self.text[self.at] != "]":
                self._value((*path, index))
                index += 1
                if self._skip() < len(self.text) and self.text[self.at] == ",":
                    self.at += 1
            self.at += 1
        elif letter == "{":
            self.at += 1
            while self._skip() < len(self.text) and self.text[self.at] != "}":
                self._pair(path)
                if self._skip() < len(self.text) and self.text[self.at] == ",":
                    self.at += 1
            self.at += 1
        else:
            matched = _OTHER.match(self.text, self.at)
            self.at = matched.end() if matched else self.at + 1

    def _string(self, path: Path) -> None:
        matched = _STRING.match(self.text, self.at)
        if matched is None:  # tomllib took it, so this is a gap of the pattern: skip the quote rather than loop
            self.at += 1
            return
        value = tomllib.loads(f"x={matched[0]}")["x"]
        start, end = matched.span(matched.lastgroup or 0)
        literal = self.text[start:end] == value
        self.strings.append(TomlString(path, value, start, end, self._line(), literal))
        self.at = matched.end()
