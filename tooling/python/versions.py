"""Understand what code says about versions: comparisons, and the constants and helper functions that make them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from tooling.python.conditions import CompareVersion, Condition, ModuleExists, VersionSource, all_of, any_of
from tooling.python.operations import UNKNOWN, Symbolic, compare, concrete

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
OPPOSITE = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">": "<=", ">=": "<", "": ""}
_BY_FUNCTION = {"lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE, "eq": ast.Eq, "ne": ast.NotEq}
SPECIAL = {OPERATORS[operator]: f"__{name}__" for name, operator in _BY_FUNCTION.items()}
_SAME = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
_PARSERS = frozenset({"parse", "Version", "parse_version", "LooseVersion", "StrictVersion", "LegacyVersion"})
_VERSION_NAMES = frozenset(
    {"__version__", "__version_info__", "__version_tuple__", "VERSION", "version_info", "version_tuple"}
)
_NUMBERS = ("major", "minor", "micro")
_PARTS = frozenset({*_NUMBERS, "base_version", "epoch", "is_prerelease", "local", "post", "pre", "public", "release"})
_MOST_PARTS = 4
_HELPER = re.compile(r"is_(\w+?)_(available|version|greater_or_equal_than|greater_or_equal|greater_than)")
_AVAILABILITY = re.compile(r"_?is_(?:package|module)_available")
_SPECIFIER = re.compile(r"\s*(<=|>=|==|!=|<|>|~=)\s*([\w.+!*-]+)\s*")


@dataclass(frozen=True, slots=True)
class VersionText(Symbolic):
    """The version of something, as text, tuple or Version: it makes no difference. parts: how many leading release
    parts are left, 0 for all. index: the one part, behind the first, that it is. text: whether it still is one."""

    source: VersionSource
    subject: str
    parts: int = 0
    index: int = 0
    text: bool = False


def version_of_symbol(dotted: str) -> VersionText | None:
    """`pkg.__version__`, also where it is kept in `pkg.version`."""
    base, _, last = dotted.rpartition(".")
    if last not in _VERSION_NAMES or not base or base == "sys":
        return None
    for suffix in (".version", "._version"):
        base = base.removesuffix(suffix)
    return VersionText(VersionSource.MODULE, base, text=last == "__version__")


def version_or_none(text: str) -> Version | None:
    """Return the version that a text is; None for other texts."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def known(value: VersionText, text: str) -> object:
    """Return a version as the code gets it, where it is known: as text, as numbers, or as an object."""
    if value.text:
        return text
    version = version_or_none(text)
    if version is None:
        return UNKNOWN
    return version.release if value.source is VersionSource.MODULE else version


def called(dotted: str, arguments: Sequence[object], *, exactly: bool = False) -> object:
    """Return what a function of a library gives when it is about versions; None for others. exactly: a Version, where
    else its text will do."""
    last = dotted.rpartition(".")[2]
    first = arguments[0] if arguments else UNKNOWN
    if last in ("version", "get_distribution", "distribution") and dotted.startswith(
        ("importlib.metadata.", "importlib_metadata.", "pkg_resources.")
    ):
        return (
            VersionText(VersionSource.DISTRIBUTION, first, text=last == "version")
            if isinstance(first, str)
            else UNKNOWN
        )
    if last in _PARSERS and (isinstance(first, VersionText) or concrete(first)):
        if exactly and isinstance(first, str):
            return Version(first)
        return replace(first, text=False) if isinstance(first, VersionText) else first
    if dotted.startswith("operator.") and last in _BY_FUNCTION and len(arguments) == 2:
        return compared(arguments[0], _BY_FUNCTION[last](), arguments[1])
    if last == "SpecifierSet" and isinstance(first, str):
        return first
    return None


def helper(name: str, arguments: Sequence[object], minimum: object) -> object:
    """`is_x_available()`, `is_x_version(">=", "1.0")`, `is_x_greater_or_equal("1.0")` of libraries whose source is not
    at hand: named so, they all mean the same."""
    found = _HELPER.fullmatch(name)
    if found is None:
        return None
    subject, kind = found[1], found[2]
    texts = [one for one in arguments if isinstance(one, str)]
    if kind == "version" and len(texts) == 2 and texts[0] in FLIPPED:
        return CompareVersion(VersionSource.MODULE, subject, texts[0], texts[1])
    if kind.startswith("greater") and texts:
        operator = ">" if kind == "greater_than" else ">="
        return CompareVersion(VersionSource.MODULE, subject, operator, texts[0])
    if kind == "available":
        wanted = minimum if minimum is not None else arguments[0] if arguments else None
        if isinstance(wanted, str):
            return CompareVersion(VersionSource.MODULE, subject, ">=", wanted)
        return ModuleExists(subject)
    return None


def availability(name: str, arguments: Sequence[object], named: Mapping[str, object]) -> object:
    """`_is_package_available("x")`, and with `return_version=True` the pair of it and the version: many libraries of
    this field have a copy of it. None for other functions."""
    if _AVAILABILITY.fullmatch(name) is None:
        return None
    first = arguments[0] if arguments else UNKNOWN
    if not isinstance(first, str):
        return UNKNOWN
    exists = ModuleExists(first)
    if named.get("return_version") is True:
        return (exists, VersionText(VersionSource.MODULE, first))
    return exists


def attribute(value: VersionText | Version | str, name: str) -> object:
    """`version.major`, `.minor`, `.release`, `.base_version`."""
    if isinstance(value, str):
        numbers = [int(part) for part in value.split(".") if part.isdigit()]
        return tuple(numbers) if name == "release" and value[:1].isdigit() else UNKNOWN
    if isinstance(value, Version):
        return str(value) if name == "version" else getattr(value, name) if name in _PARTS else UNKNOWN
    if name in _NUMBERS:
        return _number(value, _NUMBERS.index(name))
    return value if name in ("release", "base_version", "public", "version", "__version__") else UNKNOWN


def item(value: VersionText, index: ast.expr) -> object:
    """`version.split(".")[:2]`, `[1]`; `version.split("+")[0]` is all of the version."""
    if value.parts < 0:
        return replace(value, parts=0, text=True) if isinstance(index, ast.Constant) and index.value == 0 else UNKNOWN
    if isinstance(index, ast.Slice):
        upper = index.upper
        if index.lower is None and index.step is None and isinstance(upper, ast.Constant) and type(upper.value) is int:
            return replace(value, parts=upper.value if value.parts == 0 else min(value.parts, upper.value))
        return UNKNOWN
    return _number(value, index.value) if isinstance(index, ast.Constant) and type(index.value) is int else UNKNOWN


def _number(value: VersionText, index: int) -> object:
    """One part of a version."""
    if index == 0:
        return replace(value, parts=1)
    return (
        replace(value, parts=0, index=index)
        if 0 < index < (value.parts or _MOST_PARTS) and not value.index
        else UNKNOWN
    )


def _joined(value: object) -> object:
    """`(version.major, version.minor)` as the version that its parts are of."""
    if not isinstance(value, tuple | list) or not value or not isinstance(value[0], VersionText):
        return value
    whole = replace(value[0], parts=0, index=0)
    numbers = [_number(whole, index) for index in range(len(value))]
    return replace(whole, parts=len(value)) if list(value) == numbers else value


def method(value: VersionText | str, name: str, arguments: Sequence[object]) -> object:
    """Methods of strings and Versions, and `contains` of the text of specifiers."""
    first = arguments[0] if arguments else None
    if isinstance(value, str):
        return within(first, value) if isinstance(first, VersionText | Version) else UNKNOWN
    if name == "startswith":
        starts = first if isinstance(first, tuple) else (first,)
        compares = [CompareVersion(value.source, value.subject, name, each) for each in starts if isinstance(each, str)]
        return any_of(list(compares)) if compares and len(compares) == len(starts) else UNKNOWN
    if name in ("split", "partition") and first in ("+", "-", "rc", "a", "b", ".dev", "dev"):
        return replace(value, parts=-1)  # only its first piece is a version
    if name in ("strip", "lstrip", "rstrip", "replace", "removeprefix"):
        return UNKNOWN if name == "replace" and first == "." else value
    return replace(value, text=False) if name in ("split", "partition", "parse") else UNKNOWN


def compared(left: object, operator: ast.cmpop, right: object) -> object:
    """`left operator right`; a version on either side makes a condition of it."""
    sign, left, right = OPERATORS.get(type(operator), ""), _joined(left), _joined(right)
    if isinstance(right, VersionText) and sign:
        left, right, sign = right, left, FLIPPED[sign]
    if not isinstance(left, VersionText):  # the order of two texts is not that of the versions they may be
        return compare(operator, left, right) if isinstance(operator, _SAME) else UNKNOWN
    text = version_literal(right)
    if not sign or not text:
        return UNKNOWN
    by_letter = left.text and isinstance(right, str) and sign not in ("==", "!=")
    return CompareVersion(left.source, left.subject, sign, text, max(left.parts, 0), left.index, by_letter)


def version_literal(value: object) -> str:
    """Return a version text; tuples are joined with dots."""
    if isinstance(value, tuple | list) and value and all(isinstance(part, int | str) for part in value):
        return ".".join(str(part) for part in value)
    if isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) and value[:1].isdigit() else ""


def within(version: VersionText | Version, specifiers: object) -> object:
    """`version in SpecifierSet(">=1,<2")`, or in a tuple of versions."""
    if isinstance(version, Version):
        return SpecifierSet(str(specifiers)).contains(version, prereleases=True)
    conditions: list[Condition] = []
    if isinstance(specifiers, tuple | list | set | frozenset):
        for one in specifiers:
            equal = compared(version, ast.Eq(), one)
            if not isinstance(equal, CompareVersion):
                return UNKNOWN
            conditions.append(equal)
        return any_of(conditions) if conditions else UNKNOWN
    for part in str(specifiers).split(","):
        found = _SPECIFIER.fullmatch(part)
        if found is None or found[1] == "~=" or found[2].endswith("*"):
            return UNKNOWN
        conditions.append(CompareVersion(version.source, version.subject, found[1], found[2], max(version.parts, 0)))
    return all_of(conditions)
