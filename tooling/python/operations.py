"""Define the values that the evaluator works on, and the operations it performs: only these, on values made by it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import KeysView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tooling.python.source import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


class Symbolic:
    """Stands for a value that is not a constant."""

    __slots__ = ()


@dataclass(frozen=True)
class Ref(Symbolic):
    """A name that is not a constant: module, class or function, by its dotted path."""

    dotted: str


@dataclass(frozen=True, eq=False)
class Applied(Symbolic):
    """The result of a call that is not evaluated."""

    callee: str
    args: tuple[object, ...]
    keywords: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Closure(Symbolic):
    """A function of the code at hand."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    made_in: Any = None
    """The `StatementEvaluator` whose names its body sees; None: those of whoever calls it."""


class Globals(NamedTuple):
    """What `globals()` gives."""

    names: Mapping[str, object]


class OutOfFuel(Exception):
    """The code at hand does too much to be followed."""


def concrete(value: object) -> bool:
    """Whether a value can be compared with others for equality."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(concrete, value))
    if isinstance(value, dict):
        return all(map(concrete, value)) and all(map(concrete, value.values()))
    return value is not UNKNOWN and not isinstance(value, Symbolic | Globals)


def literal(source: str) -> Any:
    """Return the value of a literal; UNKNOWN for any other text."""
    try:
        return ast.literal_eval(source)
    except (*REFUSALS, TypeError):
        return UNKNOWN


@dataclass
class Fuel:
    """How much more may be done."""

    left: int = 200_000

    def burn(self) -> None:
        """Take one step. Raises OutOfFuel when nothing is left."""
        self.left -= 1
        if self.left < 0:
            raise OutOfFuel


MAX_ITEMS = 20_000
BUILTINS: dict[str, Callable[..., Any]] = {
    "set": set,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "frozenset": frozenset,
    "sorted": sorted,
    "len": len,
    "str": str,
    "zip": lambda *parts: list(zip(*parts, strict=False)),
    "enumerate": lambda part: list(enumerate(part)),
    "reversed": lambda part: list(reversed(part)),
    "bool": bool,
    "int": int,
    "float": float,
    "max": max,
    "min": min,
}
_TEXT = (
    "startswith endswith removeprefix removesuffix replace split rsplit partition rpartition lower upper strip lstrip "
    "rstrip join title capitalize"
)
_ASKED_OF_TEXT = "count find index isalnum isalpha isdecimal isdigit islower isnumeric isupper rfind"
METHODS: dict[type, frozenset[str]] = {
    str: frozenset([*_TEXT.split(), *_ASKED_OF_TEXT.split()]),
    dict: frozenset(["get", "items", "keys", "values", "update", "setdefault", "pop", "copy"]),
    list: frozenset(["append", "extend", "copy", "insert", "remove", "index", "count"]),
    set: frozenset(["add", "update", "union", "copy", "discard", "difference", "intersection"]),
    frozenset: frozenset(["union", "difference", "intersection"]),
    tuple: frozenset(["index", "count"]),
    re.Pattern: frozenset(["match", "fullmatch", "search"]),
    re.Match: frozenset(["group", "groups"]),
}
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
}
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
FAILURES = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, re.error, RecursionError)
_NESTED_REPEAT = re.compile(r"[)\]][+*{].*[)\]][+*{]|[+*}]\)[+*{]")
_BIG = 1 << 64


def small(left: object, right: object, *, growing: bool) -> bool:
    """Whether a product, power or shift stays of a reasonable size. `growing`: a power or shift."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left) < _BIG and abs(right) < (1024 if growing else _BIG)
    return isinstance(right, int) and right < 1000 and isinstance(left, str | list | tuple) and len(left) < 1000


def fits(*values: object, product: bool = False) -> bool:
    """Whether an operation on values gives something of a reasonable size."""
    sizes = [len(value) for value in values if isinstance(value, str | bytes | list | tuple | dict | set | frozenset)]
    if product:
        widths = any(isinstance(value, str) and re.search(r"%[^%sdr]", value) for value in values)
        return not widths and sum(sizes) < 1_000
    return sum(sizes) < 200_000


def compare(action: ast.cmpop, left: Any, right: Any) -> object:
    """One comparison."""
    if isinstance(action, ast.In | ast.NotIn):
        if left is UNKNOWN or not isinstance(right, dict | KeysView | list | tuple | set | frozenset | str):
            return UNKNOWN
        held = COMPARE[type(action)](left, right)
        complete = isinstance(right, str) or UNKNOWN not in right
        return held if complete or held is isinstance(action, ast.In) else UNKNOWN
    if not (concrete(left) and concrete(right)):
        return UNKNOWN
    return COMPARE[type(action)](left, right)


def regular(function: str, args: list[Any]) -> object:
    """Regular expressions of a release are used only if they cannot take exponential time."""
    if not args or not isinstance(args[0], str):
        return UNKNOWN
    if function == "escape":
        return re.escape(args[0])
    return UNKNOWN if _NESTED_REPEAT.search(args[0]) else re.compile(args[0])
