"""Declarations in setup.cfg and, as far as they are literal, in setup.py. Neither is ever run."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.build import required
from tooling.upgrade.declarations.records import Declaration, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        kind = Kind.BUILD if option == "setup_requires" else Kind.REQUIREMENT
        return required(path, line, offset, value, kind, section=f"options.{option}")
    if section == "options.extras_require":
        return required(path, line, offset, value, Kind.REQUIREMENT, section=section, group=option)
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
        entry = required(path, string.lineno, offset, str(string.value), Kind.REQUIREMENT, section=name)
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
