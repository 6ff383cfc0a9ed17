"""Read the declarations of pyproject.toml, setup.cfg and setup.py; nothing is run.

Where the strings of a TOML document stand is found by hand, because an edit must leave every other byte as it is, and
an error must name the line. Documents are parsed by `tomllib` first, so that the scanner meets valid text only.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.declaration import (
    Declaration,
    DeclarationKind,
    SpecifierStyle,
    python_marker,
    required,
    versioned,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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


_VERSION_TAG = re.compile(r"v?(?P<version>\d+(?:\.\d+)+\S*)$")
_LISTS: dict[tuple[str, ...], DeclarationKind] = {
    ("project", "dependencies"): DeclarationKind.REQUIREMENT,
    ("build-system", "requires"): DeclarationKind.BUILD,
    ("tool", "uv", "override-dependencies"): DeclarationKind.OVERRIDE,
    ("tool", "uv", "constraint-dependencies"): DeclarationKind.CONSTRAINT,
    ("tool", "uv", "build-constraint-dependencies"): DeclarationKind.BUILD,
    ("tool", "uv", "dev-dependencies"): DeclarationKind.REQUIREMENT,
    ("tool", "pdm", "resolution", "overrides"): DeclarationKind.OVERRIDE,
}
_GROUPS: tuple[tuple[str, ...], ...] = (
    ("project", "optional-dependencies"),
    ("dependency-groups",),
    ("tool", "pdm", "dev-dependencies"),
)


def read_pyproject(path: str, text: str) -> list[Declaration]:
    """All declarations. Raises tomllib.TOMLDecodeError for what is not TOML."""
    strings = scan_toml(text)
    values = {string.path: string.value for string in strings}
    found = [_declaration(path, string, values) for string in strings]
    return [each for each in found if each is not None]


def _declaration(path: str, string: TomlString, values: Mapping[Path, str]) -> Declaration | None:
    if not string.literal:
        return None
    keys = string.path
    listed = _listed(keys)
    if listed is not None:
        kind, section, group = listed
        return required(path, string.line, string.start, string.value, kind, section=section, group=group)
    if keys[:3] == ("tool", "uv", "sources"):
        key = string.path[-1]
        if key not in {"tag", "rev", "branch", "url"}:
            return None
        tag = _VERSION_TAG.match(string.value) if key == "tag" else None
        start, version, style = string.start, string.value, SpecifierStyle.OPAQUE
        if tag is not None:
            start, version, style = string.start + tag.start("version"), tag["version"], SpecifierStyle.PLAIN
        name = str(string.path[3])
        text = f"{name} = {{{key} = {string.value!r}}}"
        return versioned(
            path,
            string.line,
            start,
            version,
            name,
            DeclarationKind.SOURCE,
            style=style,
            section="tool.uv.sources",
            text=text,
        )
    return _poetry(path, string, values)


def _listed(keys: Path) -> tuple[DeclarationKind, str, str] | None:
    """Kind, section and group of an item of a list of requirements."""
    names = tuple(key for key in keys[:-1] if isinstance(key, str))
    if names in _LISTS and isinstance(keys[-1], int):
        return _LISTS[names], ".".join(names), ""
    for section in _GROUPS:
        if names[:-1] == section and len(keys) == len(section) + 2 and isinstance(keys[-1], int):
            return DeclarationKind.REQUIREMENT, ".".join(section), names[-1]
    return None


def _poetry(path: str, string: TomlString, values: Mapping[Path, str]) -> Declaration | None:
    """`[tool.poetry.dependencies] x = "^1.2"`, or x.version, or x = {version = ...}, or a list of such tables; groups
    likewise. values: of all strings of the file."""
    keys = tuple(key for key in string.path if isinstance(key, str))
    if keys[:2] != ("tool", "poetry") or string.path[-1] in {"python", "git", "path", "url", "markers"}:
        return None
    keys = keys[:-1] if keys[-1] == "version" else keys
    group = keys[3] if len(keys) > 4 and keys[2] == "group" else ""
    section = keys[:-1]
    if section not in {("tool", "poetry", "dependencies"), ("tool", "poetry", "group", group, "dependencies")}:
        return None
    table = string.path[:-1] if string.path[-1] == "version" else string.path
    python = values.get((*table, "python"), "") if table != string.path else ""
    markers = [python_marker(python), values.get((*table, "markers"), "") if table != string.path else ""]
    text = f'{keys[-1]} = "{string.value}"'
    return Declaration(
        path=path,
        line=string.line,
        start=string.start,
        end=string.end,
        distribution=str(keys[-1]).lower().replace("_", "-"),
        specifier=string.value,
        kind=DeclarationKind.REQUIREMENT,
        style=SpecifierStyle.POETRY,
        section=".".join(section),
        group=group,
        extras=tuple(value for place, value in values.items() if place[:-1] == (*table, "extras")),
        marker=" and ".join(f"({each})" for each in markers if each),
        text=text,
    )


_SECTION = re.compile(r"\[(?P<name>[^\]]+)\]\s*$")
_OPTION = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)\s*[=:]\s*(?P<value>.*)$")
_NAMED = re.compile(r"require|depend|extras|deps|install", re.IGNORECASE)


def read_setup_cfg(path: str, text: str) -> list[Declaration]:
    """[options] install_requires, setup_requires; [options.extras_require]."""
    found: list[Declaration] = []
    section = option = ""
    offset = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        stripped = line.strip()
        start = offset
        offset += len(line)
        if not stripped or stripped[0] in "#;":
            continue
        if matched := _SECTION.match(line):
            section, option = matched["name"].strip(), ""
            continue
        value, begins = line.rstrip("\r\n"), 0
        if not line[0].isspace():
            matched = _OPTION.match(value)
            if matched is None:
                continue
            option, begins, value = matched["name"], matched.start("value"), matched["value"]
        entry = _cfg_entry(path, number, start + begins, value, section, option)
        found += [entry] if entry is not None else []
    return found


def _cfg_entry(path: str, line: int, offset: int, value: str, section: str, option: str) -> Declaration | None:
    value = re.sub(r"\s#.*$", "", value)
    if not value.strip():
        return None
    if section == "options" and option in {"install_requires", "setup_requires", "tests_require"}:
        kind = DeclarationKind.BUILD if option == "setup_requires" else DeclarationKind.REQUIREMENT
        return required(path, line, offset, value, kind, section=f"options.{option}")
    if section == "options.extras_require":
        return required(path, line, offset, value, DeclarationKind.REQUIREMENT, section=section, group=option)
    return None


def read_setup_py(path: str, text: str) -> list[Declaration]:
    """Literal strings in what is called install_requires, extras_require and the like. Raises SyntaxError."""
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()
    found: list[Declaration] = []
    seen: set[tuple[int, int]] = set()
    for name, string in _named_strings(tree):
        place = (string.lineno, string.col_offset)
        if place in seen or string.end_lineno != string.lineno:
            continue
        seen.add(place)
        source = ast.get_source_segment(text, string) or ""
        if source[1:-1] != string.value or source[:1] not in {"'", '"'}:
            continue
        column = len(lines[string.lineno - 1].encode()[: string.col_offset].decode(errors="replace"))
        offset = starts[string.lineno - 1] + column + 1
        entry = required(path, string.lineno, offset, str(string.value), DeclarationKind.REQUIREMENT, section=name)
        found += [entry] if entry is not None else []
    return found


def _named_strings(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """(name, string) of the string items of lists and dicts that are assigned or passed under a telling name."""
    bound = [pair for node in ast.walk(tree) for pair in _bound(node)]
    telling = [value for name, value in bound if _NAMED.search(name)]
    used = {node.id for value in telling for node in ast.walk(value) if isinstance(node, ast.Name)}
    for name, value in bound:
        listed = isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.BinOp)
        if listed and (name in used or _NAMED.search(name)):
            yield from ((name, each) for each in _items(value))


def _bound(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Names and keywords with their values."""
    if isinstance(node, ast.Assign):
        return [(ast.unparse(target), node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        return [(ast.unparse(node.target), node.value)]
    if isinstance(node, ast.keyword) and node.arg:
        return [(node.arg, node.value)]
    return []


def _items(value: ast.AST) -> Iterator[ast.Constant]:
    parts: list[ast.expr] = []
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        parts = value.elts
    elif isinstance(value, ast.Dict):
        parts = value.values
    elif isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part
        else:
            yield from _items(part)
