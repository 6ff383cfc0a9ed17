"""Answer questions to the text of a whole tree by patterns: where names are defined, who calls and imports them.

Nothing is parsed: a release of two thousand modules takes a second, once, and the answer is kept with its facts.
"""

from __future__ import annotations

import ast
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.access_paths import is_distinctive
from tooling.python.source import absolute, children, dotted_name, module_name, package_of, parse_expression, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.python.symbols.store import TreeStore


@dataclass(frozen=True, slots=True)
class TopLevelName:
    """A row of the table of top-level names."""

    module: str
    kind: str
    """"class", "function" or "value"."""
    line: int


@dataclass(frozen=True, slots=True)
class NameTable:
    """Where each top-level name of a release is defined, by pattern and without parsing."""

    by_name: Mapping[str, Sequence[TopLevelName]] = field(default_factory=dict)


_DEFINED = re.compile(
    rb"^(?:(class|def|async[ \t]+def)[ \t]+([^\W\d]\w*)|([^\W\d]\w*)[ \t]*(?::[^=\n]*)?=(?!=))", re.MULTILINE
)
_TEXT = re.compile(
    rb'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL
)
"""Strings and comments."""
_CALLED = re.compile(rb"\.\s*([A-Za-z_]\w*)\s*\(")
_RECEIVER = re.compile(rb"[\w.]+\Z")
_KINDS = {b"class": "class", b"": "value"}
LONGEST_CALL = 4_000
MOST_FILES = 400


def name_table(store: TreeStore) -> NameTable:
    """Where each top-level name is defined. Definitions under conditions are not among them."""
    rows: dict[str, list[tuple[str, str, int]]] = store.answer(("names",), lambda: _rows(store))
    return NameTable({name: tuple(TopLevelName(*row) for row in found) for name, found in rows.items()})


def _rows(store: TreeStore) -> dict[str, list[tuple[str, str, int]]]:
    found: dict[str, list[tuple[str, str, int]]] = {}
    for path in store.source.files():
        data = store.source.read(path)
        module = module_name(path)[0]
        line, position = 1, 0
        for match in _DEFINED.finditer(data):
            line += data.count(b"\n", position, match.start())
            position = match.start()
            keyword, defined, assigned = match.groups()
            kind = _KINDS.get(keyword or b"", "function")
            name = (defined or assigned).decode("utf-8", "replace")
            found.setdefault(name, []).append((module, kind, line))
    return found


def calls_of(store: TreeStore, name: str) -> list[tuple[str, int, str]]:
    """(file, line, source) of each call `<anything>.name(...)` outside strings and comments."""
    pattern = re.compile(rb"\.\s*" + re.escape(name.encode()) + rb"\s*\(")
    callers: dict[str, list[int]] = store.answer(("callers",), lambda: _callers(store))
    files = store.source.files()
    return [
        (files[index], line, source)
        for index in callers.get(name, ())[:MOST_FILES]
        for line, source in _calls_in(store.source.read(files[index]), pattern)
    ]


def _callers(store: TreeStore) -> dict[str, list[int]]:
    """Files that look as if they called a method, by its name; a release is read once for all names."""
    found: dict[str, list[int]] = {}
    for index, path in enumerate(store.source.files()):
        if not path.endswith(".pyi"):
            for name in set(_CALLED.findall(store.source.read(path))):
                found.setdefault(name.decode(), []).append(index)
    return found


def _calls_in(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, str]]:
    spans = [match.span() for match in _TEXT.finditer(data)]
    index = 0
    for match in pattern.finditer(data):
        while index < len(spans) and spans[index][1] <= match.start():
            index += 1
        if index < len(spans) and spans[index][0] <= match.start():
            continue
        end = _closing(data, match.end(), spans, index)
        line_start = data.rfind(b"\n", 0, match.start()) + 1
        receiver = _RECEIVER.search(data, line_start, match.start())
        start = receiver.start() if receiver else match.start() + 1
        source = data[start:end].decode("utf-8", "replace")
        if receiver is None:
            source = f"_.{source.lstrip('.')}"
        if end and parse_expression(source) is not None:
            yield data.count(b"\n", 0, match.start()) + 1, " ".join(source.split())


def _closing(data: bytes, position: int, spans: list[tuple[int, int]], index: int) -> int:
    """Where the bracket that opens before `position` is closed; 0 if it is not, or far away."""
    depth = 1
    last = min(len(data), position + LONGEST_CALL)
    while position < last:
        while index < len(spans) and spans[index][1] <= position:
            index += 1
        if index < len(spans) and spans[index][0] <= position:
            position = spans[index][1]
            continue
        character = data[position : position + 1]
        if character in b"([{":
            depth += 1
        elif character in b")]}":
            depth -= 1
            if not depth:
                return position + 1
        position += 1
    return 0


_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<module>\.*\w[\w.]*|\.+)[ \t]+import[ \t]*"
    rb"(?P<names>\([^)#]*(?:#[^\n]*\n[^)#]*)*\)|(?:\\\r?\n|[^\n#;])+)"
    rb"|import[ \t]+(?P<plain>(?:\\\r?\n|[\w., \t])+))",
    re.MULTILINE,
)


def imports_in(data: bytes) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield (level, module, names) of import statements, by their text; no names for plain imports, "*" for all."""
    for found in _IMPORT.finditer(data):
        if found["plain"] is not None:
            for entry in found["plain"].decode().replace("\\", " ").split(","):
                if entry.split():
                    yield 0, entry.split()[0], ()
            continue
        module = found["module"].decode()
        names = tuple(
            entry.split()[0]
            for line in found["names"].decode("utf-8", "replace").strip("()").splitlines()
            for entry in line.partition("#")[0].replace("\\", " ").split(",")
            if entry.split()
        )
        level = len(module) - len(module.lstrip("."))
        yield level, module[level:], names


def imports_of(store: TreeStore) -> dict[str, dict[str, list[str]]]:
    """Map importing module -> module -> names, of each `from a import b`."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in store.source.files():
        importer, package = module_name(path)[0], package_of(path)
        for level, spelt, names in imports_in(store.source.read(path)):
            module = absolute(package, level, spelt)
            if names and module:
                found.setdefault(importer, {}).setdefault(module, []).extend(each for each in names if each != "*")
    return found


_PART = re.compile(
    rb"^(?:class[ \t]+(?P<class>\w+)|(?P<end>[^\s#)\]}@])"
    rb"|[ ]{4}(?:async[ ]+)?def[ ]+(?P<method>\w+)(?=\()"
    rb"|[ ]{4}(?P<field>[A-Za-z_]\w*)[ \t]*(?P<value>(?::[^=\n]+)?(?:=[^=\n][^\n]*)?)$"
    rb"|[ ]{8,}self\.(?P<own>\w+)[ \t]*(?::[^=\n]+)?=(?!=))",
    re.MULTILINE,
)
_BRACKET = re.compile(rb"[()\[\]{}]")
_LONGEST = 8_000
"""Bytes between the brackets of a definition."""
_SPACE = re.compile(rb"\s+|,(?=\s*\))")
Definers = dict[str, dict[str, int]]
"""Name of an attribute -> dotted path of a class -> checksum of how it is written there (0: assigned to `self`)."""


def member_names(store: TreeStore) -> Definers:
    """Find the definers of each attribute of classes at the top level of modules."""
    found: Definers = {}
    for path in store.source.files():
        data = store.source.read(path)
        if b"class " not in data:
            continue
        module, owner = module_name(path)[0], ""
        for match in _PART.finditer(data):
            kind = match.lastgroup
            if kind == "class":
                owner = f"{module}.{match['class'].decode()}"
            elif kind == "end":
                owner = ""
            elif owner and kind == "method":
                depth, end = 0, match.end()
                for bracket in _BRACKET.finditer(data, match.end(), match.end() + _LONGEST):
                    depth += 1 if bracket[0] in b"([{" else -1
                    if not depth:
                        end = bracket.end()
                        break
                shape = zlib.crc32(_SPACE.sub(b"", data[match.end() : end])) or 1
                found.setdefault(match["method"].decode(), {})[owner] = shape
            elif owner and kind == "value":
                found.setdefault(match["field"].decode(), {})[owner] = zlib.crc32(_SPACE.sub(b"", match["value"])) or 1
            elif owner and kind == "own":
                found.setdefault(match["own"].decode(), {}).setdefault(owner, 0)
    return found


_DEFINITION = re.compile(
    rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)\(((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+)\)", re.MULTILINE
)
_PARAMETER = re.compile(rb"(?:^|,)\s*+(?:#[^\n]*+\n\s*+)*+(\w+)\s*+(?=[:=,]|$)")


def parameter_names(store: TreeStore) -> dict[str, list[str]]:
    """Map each parameter of several words to the names of the functions and methods that have it."""
    found: dict[str, set[str]] = {}
    for path in store.source.files():
        for match in _DEFINITION.finditer(store.source.read(path)):
            for each in _PARAMETER.findall(match[2]):
                if is_distinctive(name := each.decode()):
                    found.setdefault(name, set()).add(match[1].decode())
    return {name: sorted(functions) for name, functions in found.items()}


_CLASS = re.compile(rb"^[ \t]*class[ \t]+(\w+)[ \t]*\(([^()]*)", re.MULTILINE)
_BASE = re.compile(rb"(?:^|,)[\s.]*+(?:\w++[\s.]++)*?(\w++)[ \t\n]*+(?=[,\[]|$)")


def base_names(store: TreeStore) -> dict[str, list[str]]:
    """Map the name of each class to the last names of its bases; of classes of one name those of all."""
    found: dict[str, set[str]] = {}
    for path in store.source.files():
        for name, bases in _CLASS.findall(store.source.read(path)):
            found.setdefault(name.decode(), set()).update(each.decode() for each in _BASE.findall(bases))
    return {name: sorted(bases) for name, bases in found.items()}


def speaks_of(store: TreeStore, word: str) -> bool:
    """Whether a word stands anywhere in the text of a release, in strings and comments too."""
    text, pattern = word.encode(), re.compile(rb"\b" + re.escape(word.encode()) + rb"\b")
    return any(text in data and pattern.search(data) for data in map(store.source.read, store.source.files()))


def reads_name(store: TreeStore, name: str) -> bool:
    """Whether code of a release reads a name, or asks for it by a string or a part of one, as in `f"on_{event}"`; to
    define, import or export it is not to."""
    parts = name.split("_")
    asked = {name, *("_".join(parts[:end]) + "_" for end in range(1, len(parts))), f"_{parts[-1]}"} - {"_", "__"}
    word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b|[\"'}](?:%b)[\"'{]" % "|".join(asked).encode())
    files = (path for path in store.source.files() if not path.endswith(".pyi"))
    naming = [data for data in map(store.source.read, files) if word.search(data)]
    trees = [parsed(data) for data in naming[:MOST_FILES]]
    pending: list[ast.AST] = [tree for tree in trees if tree is not None]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == "__all__":
            continue
        named = getattr(node, "attr", getattr(node, "id", None))
        if named == name and isinstance(getattr(node, "ctx", None), ast.Load):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in asked:
            return True
        pending.extend(children(node))
    return len(naming) > MOST_FILES
