"""Read the declarations of pyproject.toml, setup.cfg and setup.py; nothing is run."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.declaration import DeclarationKind, SpecifierStyle, python_marker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.upgrade.declarations.declaration import Declaration, ManifestText


TomlPath = tuple[str | int, ...]
_TOKEN = re.compile(
    r"#[^\n]*|\"\"\"(?P<a>(?:[^\\]|\\.)*?\"{0,2})\"\"\"(?!\")|'''(?P<b>.*?'{0,2})'''(?!')"
    r"|\"(?P<c>(?:[^\"\\\n]|\\.)*)\"|'(?P<d>[^'\n]*)'",
    re.DOTALL,
)
"""A comment or a string of a valid document."""


@dataclass(frozen=True, slots=True)
class TomlString:
    """A string value."""

    path: TomlPath
    """Keys and indices: ("project", "dependencies", 0)."""
    value: str
    start: int
    """Span of what is between the quotes, in characters."""
    end: int
    literal: bool
    """Whether the text between the quotes is the value (no escapes): only then it can be edited."""


def scan_toml(text: str) -> list[TomlString]:
    """Return the strings of a document as they stand in it. Raises tomllib.TOMLDecodeError for what is not TOML."""
    tomllib.loads(text)
    tokens: list[re.Match[str]] = []

    def numbered(token: re.Match[str]) -> str:
        if token.lastgroup is None:  # a comment
            return ""
        tokens.append(token)
        return f'"@{len(tokens) - 1}"'

    # The parser does not tell where a string stands: so each is replaced by its number, also where it is a key
    document = tomllib.loads(_TOKEN.sub(numbered, text))
    values = [tomllib.loads(f"x={token[0]}")["x"] for token in tokens]

    def strings(found: object, path: TomlPath) -> Iterator[TomlString]:
        if isinstance(found, dict):
            for key, each in found.items():
                yield from strings(each, (*path, values[int(key[1:])] if key.startswith("@") else key))
        elif isinstance(found, list):
            for index, each in enumerate(found):
                yield from strings(each, (*path, index))
        elif isinstance(found, str):
            number = int(found[1:])
            start, end = tokens[number].span(tokens[number].lastgroup or 0)
            yield TomlString(path, values[number], start, end, text[start:end] == values[number])

    return sorted(strings(document, ()), key=lambda each: each.start)


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


def read_pyproject(file: ManifestText) -> Iterator[Declaration]:
    """Yield all declarations. Raises tomllib.TOMLDecodeError for what is not TOML."""
    strings = scan_toml(file.text)
    values = {string.path: string.value for string in strings}
    for string in strings:
        listed = _listed(string.path)
        if not string.literal:
            continue
        if listed is not None:
            kind, section, group = listed
            yield from file.required(string.start, string.value, kind, section=section, group=group)
        elif string.path[:3] == ("tool", "uv", "sources"):
            yield from _uv_source(file, string)
        else:
            yield from _poetry(file, string, values)


def _uv_source(file: ManifestText, string: TomlString) -> Iterator[Declaration]:
    name, key = str(string.path[3]), string.path[-1]
    if key not in {"tag", "rev", "branch", "url"}:
        return
    tag = _VERSION_TAG.match(string.value) if key == "tag" else None
    yield file.versioned(
        string.start + (tag.start("version") if tag else 0),
        tag["version"] if tag else string.value,
        name,
        DeclarationKind.SOURCE,
        style=SpecifierStyle.PLAIN if tag else SpecifierStyle.OPAQUE,
        section="tool.uv.sources",
        text=f"{name} = {{{key} = {string.value!r}}}",
    )


def _listed(keys: TomlPath) -> tuple[DeclarationKind, str, str] | None:
    """Kind, section and group of an item of a list of requirements."""
    names = tuple(key for key in keys[:-1] if isinstance(key, str))
    if names in _LISTS and isinstance(keys[-1], int):
        return _LISTS[names], ".".join(names), ""
    for section in _GROUPS:
        if names[:-1] == section and len(keys) == len(section) + 2 and isinstance(keys[-1], int):
            return DeclarationKind.REQUIREMENT, ".".join(section), names[-1]
    return None


def _poetry(file: ManifestText, string: TomlString, values: Mapping[TomlPath, str]) -> Iterator[Declaration]:
    """`[tool.poetry.dependencies] x = "^1.2"`, or x.version, or x = {version = ...}, or a list of such tables; groups
    likewise. values: of all strings of the file."""
    keys = tuple(key for key in string.path if isinstance(key, str))
    if keys[:2] != ("tool", "poetry") or string.path[-1] in {"python", "git", "path", "url", "markers"}:
        return
    keys = keys[:-1] if keys[-1] == "version" else keys
    group = keys[3] if len(keys) > 4 and keys[2] == "group" else ""
    section = keys[:-1]
    if section not in {("tool", "poetry", "dependencies"), ("tool", "poetry", "group", group, "dependencies")}:
        return
    table = string.path[:-1] if string.path[-1] == "version" else string.path
    python = values.get((*table, "python"), "") if table != string.path else ""
    markers = [python_marker(python), values.get((*table, "markers"), "") if table != string.path else ""]
    yield file.versioned(
        string.start,
        string.value,
        keys[-1],
        DeclarationKind.REQUIREMENT,
        style=SpecifierStyle.POETRY,
        section=".".join(section),
        text=f'{keys[-1]} = "{string.value}"',
        group=group,
        extras=tuple(value for place, value in values.items() if place[:-1] == (*table, "extras")),
        marker=" and ".join(f"({each})" for each in markers if each),
    )


_SECTION = re.compile(r"\[(?P<name>[^\]]+)\]\s*$")
_OPTION = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)\s*[=:]\s*(?P<value>.*)$")
_NAMED = re.compile(r"require|depend|extras|deps|install", re.IGNORECASE)


def read_setup_cfg(file: ManifestText) -> Iterator[Declaration]:
    """[options] install_requires, setup_requires; [options.extras_require]."""
    section = option = ""
    offset = 0
    for line in file.text.splitlines(keepends=True):
        stripped = line.strip()
        start, offset = offset, offset + len(line)
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
        value = re.sub(r"\s#.*$", "", value)
        if section == "options" and option in {"install_requires", "setup_requires", "tests_require"}:
            kind = DeclarationKind.BUILD if option == "setup_requires" else DeclarationKind.REQUIREMENT
            yield from file.required(start + begins, value, kind, section=f"options.{option}")
        elif section == "options.extras_require":
            kind = DeclarationKind.REQUIREMENT
            yield from file.required(start + begins, value, kind, section=section, group=option)


def read_setup_py(file: ManifestText) -> Iterator[Declaration]:
    """Literal strings in what is called install_requires, extras_require and the like. Raises SyntaxError."""
    lines = file.text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    seen: set[tuple[int, int]] = set()
    for name, string in _named_strings(ast.parse(file.text)):
        place = (string.lineno, string.col_offset)
        if place in seen or string.end_lineno != string.lineno:
            continue
        seen.add(place)
        column = len(lines[string.lineno - 1].encode()[: string.col_offset].decode(errors="replace"))
        offset = starts[string.lineno - 1] + column
        written, value = file.text[offset:], str(string.value)
        if written[:1] in {"'", '"'} and written[1:].startswith(f"{value}{written[0]}"):
            yield from file.required(offset + 1, value, DeclarationKind.REQUIREMENT, section=name)


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
