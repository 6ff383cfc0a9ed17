"""Versions in conditions: where they come from, what is done to them, and how they are compared."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.upgrade.usage.guards.values import (
    NOTHING,
    Literal,
    Several,
    Symbol,
    Truth,
    Value,
    VersionText,
    all_of,
    any_of,
)
from tooling.upgrade.uses import CompareVersion, Condition, ModuleExists, VersionSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_BY_FUNCTION = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_PARSERS = frozenset({"parse", "Version", "parse_version", "LooseVersion", "StrictVersion", "LegacyVersion"})
_VERSION_NAMES = frozenset({"__version__", "__version_tuple__", "VERSION", "version_tuple"})
_HELPER = re.compile(r"is_(\w+?)_(available|version|greater_or_equal_than|greater_or_equal|greater_than)")
_AVAILABILITY = re.compile(r"_?is_(?:package|module)_available")
_SPECIFIER = re.compile(r"\s*(<=|>=|==|!=|<|>|~=)\s*([\w.+!*-]+)\s*")


def version_of_symbol(dotted: str) -> VersionText | None:
    """`pkg.__version__`, also where it is kept in `pkg.version`."""
    base, _, last = dotted.rpartition(".")
    if last not in _VERSION_NAMES or not base:
        return None
    for suffix in (".version", "._version"):
        base = base.removesuffix(suffix)
    return VersionText(VersionSource.MODULE, base)


def called(dotted: str, arguments: Sequence[Value]) -> Value | None:
    """What a function of a library gives when it is about versions; None for others."""
    last = dotted.rpartition(".")[2]
    first = arguments[0] if arguments else NOTHING
    if last in ("version", "get_distribution", "distribution") and _is_metadata(dotted):
        name = first.value if isinstance(first, Literal) else None
        return VersionText(VersionSource.DISTRIBUTION, name) if isinstance(name, str) else NOTHING
    if last in _PARSERS and isinstance(first, VersionText | Literal):
        return first
    if dotted.startswith("operator.") and last in _BY_FUNCTION and len(arguments) == 2:
        return compared(arguments[0], _BY_FUNCTION[last], arguments[1])
    if last == "SpecifierSet" and isinstance(first, Literal):
        return first
    return None


def _is_metadata(dotted: str) -> bool:
    return dotted.startswith(("importlib.metadata.", "importlib_metadata.", "pkg_resources."))


def helper(name: str, arguments: Sequence[Value], minimum: Value | None) -> Value | None:
    """`is_x_available()`, `is_x_version(">=", "1.0")`, `is_x_greater_or_equal("1.0")` of libraries whose source is not
    at hand: named so, they all mean the same."""
    found = _HELPER.fullmatch(name)
    if found is None:
        return None
    subject, kind = found[1], found[2]
    texts = [one.value for one in arguments if isinstance(one, Literal) and isinstance(one.value, str)]
    if kind == "version" and len(texts) == 2 and texts[0] in _FLIPPED:
        return Truth(CompareVersion(VersionSource.MODULE, subject, texts[0], texts[1]))
    if kind.startswith("greater") and texts:
        operator = ">" if kind == "greater_than" else ">="
        return Truth(CompareVersion(VersionSource.MODULE, subject, operator, texts[0]))
    if kind == "available":
        wanted = minimum if minimum is not None else arguments[0] if arguments else None
        if isinstance(wanted, Literal) and isinstance(wanted.value, str):
            return Truth(CompareVersion(VersionSource.MODULE, subject, ">=", wanted.value))
        return Truth(ModuleExists(subject))
    return None


def availability(name: str, arguments: Sequence[Value], named: Mapping[str, Value]) -> Value | None:
    """`_is_package_available("x")`, and with `return_version=True` the pair of it and the version: many libraries of
    this field have a copy of it. None for other functions."""
    if _AVAILABILITY.fullmatch(name) is None:
        return None
    first = arguments[0] if arguments else NOTHING
    if not isinstance(first, Literal) or not isinstance(first.value, str):
        return NOTHING
    exists = Truth(ModuleExists(first.value))
    if named.get("return_version") == Literal(True):
        return Several((exists, VersionText(VersionSource.MODULE, first.value)))
    return exists


def attribute(value: VersionText, name: str) -> Value:
    """`version.major`, `.release`, `.base_version`."""
    if name == "major":
        return replace(value, parts=1)
    return value if name in ("release", "base_version", "public", "version", "__version__") else NOTHING


def item(value: VersionText, index: ast.expr) -> Value:
    """`version.split(".")[:2]`, `[0]`."""
    if isinstance(index, ast.Slice):
        upper = index.upper
        if index.lower is None and index.step is None and isinstance(upper, ast.Constant) and type(upper.value) is int:
            return replace(value, parts=upper.value if value.parts == 0 else min(value.parts, upper.value))
        return NOTHING
    if isinstance(index, ast.Constant) and index.value == 0:
        return replace(value, parts=1)
    return NOTHING


def method(value: VersionText, name: str, arguments: Sequence[Value]) -> Value:
    """Methods of strings and Versions."""
    first = arguments[0].value if arguments and isinstance(arguments[0], Literal) else None
    if name == "startswith" and isinstance(first, str):
        return Truth(CompareVersion(value.source, value.subject, "startswith", first))
    if name == "split" and first in ("+", "-", "rc", "a", "b", ".dev", "dev"):
        return replace(value, parts=-1)  # only its first piece is a version
    return value if name in ("split", "strip", "lstrip", "rstrip", "replace", "removeprefix", "parse") else NOTHING


def compare_operator(operator: ast.cmpop) -> str:
    """Sign of a comparison; "" for `is` and `in`."""
    return _OPERATORS.get(type(operator), "")


def compared(left: Value, operator: str, right: Value) -> Value:
    """`left operator right`, if one side is a version and the other is known."""
    if isinstance(right, VersionText) and isinstance(left, Literal):
        return compared(right, _FLIPPED.get(operator, ""), left)
    if isinstance(left, Literal) and isinstance(right, Literal):
        if operator == "==":
            return Literal(left.value == right.value)
        return Literal(left.value != right.value) if operator == "!=" else NOTHING
    if not isinstance(left, VersionText) or not isinstance(right, Literal) or operator not in _FLIPPED:
        return NOTHING
    text = version_literal(right.value)
    if not text:
        return NOTHING
    return Truth(CompareVersion(left.source, left.subject, operator, text, max(left.parts, 0)))


def version_literal(value: object) -> str:
    """A version text; tuples are joined with dots."""
    if isinstance(value, tuple) and value and all(isinstance(part, int | str) for part in value):
        return ".".join(str(part) for part in value)
    if isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) and value[:1].isdigit() else ""


def within(version: VersionText, specifiers: Literal) -> Value:
    """`version in SpecifierSet(">=1,<2")`, or in a tuple of versions."""
    if isinstance(specifiers.value, tuple | list | set | frozenset):
        members = [compared(version, "==", Literal(one)) for one in specifiers.value]
        if not members or not all(isinstance(one, Truth) for one in members):
            return NOTHING
        return Truth(any_of([one.condition for one in members if isinstance(one, Truth)]))
    conditions: list[Condition] = []
    for part in str(specifiers.value).split(","):
        found = _SPECIFIER.fullmatch(part)
        if found is None or found[1] == "~=" or found[2].endswith("*"):
            return NOTHING
        conditions.append(CompareVersion(version.source, version.subject, found[1], found[2], max(version.parts, 0)))
    return Truth(all_of(conditions))


def library_symbol(value: Value) -> str:
    """Dotted path of a symbol, "" for other values."""
    return value.dotted if isinstance(value, Symbol) else ""
