"""Parse modules of any Python version, and know the names that Python itself defines."""

from __future__ import annotations
import __future__ as features

import ast
import builtins
import enum
import gc
import hashlib
import importlib
import importlib.util
import warnings
from collections import namedtuple
from contextlib import contextmanager
from functools import cache, lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


MODULES = (
    *("abc", "argparse", "ast", "builtins", "collections", "collections.abc", "contextlib", "dataclasses", "datetime"),
    *("enum", "functools", "io", "json", "logging", "pathlib", "queue", "string", "threading", "types", "typing"),
)
"""Modules whose classes are looked at. Importing them has no effect beyond Python's own."""

WITHOUT_CONSTRUCTOR = (
    *("builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol"),
    *("typing_extensions.Generic", "typing_extensions.Protocol"),
)
"""Bases that leave the constructor to others."""

_SPECIAL: dict[tuple[str, str], type] = {
    ("typing", "TypedDict"): dict,
    ("typing", "NamedTuple"): namedtuple("Empty", ()),
}
"""What only looks like a base class."""

_PLAIN = ("abc", "builtins", "collections", "collections.abc", "enum", "typing")

_ALIASES = {"typing_extensions": "typing", "_collections_abc": "collections.abc"}


def is_builtin(name: str) -> bool:
    """Whether a plain name is there without import."""
    return hasattr(builtins, name)


@cache
def python_class(dotted: str) -> type | None:
    """A class of the standard library, by its dotted path, if it is one of those looked at."""
    module, _, name = dotted.rpartition(".")
    module = _ALIASES.get(module, module)
    if module not in MODULES:
        return None
    if (module, name) in _SPECIAL:
        return _SPECIAL[module, name]
    found = getattr(importlib.import_module(module), name, None)
    if isinstance(found, type):
        return found
    origin = getattr(found, "__origin__", None)  # typing.List and its like
    if isinstance(origin, type):
        return origin
    return object if found is not None and module == "typing" else None


def is_exception(dotted: str) -> bool:
    """Whether it is an exception of Python."""
    found = python_class(dotted)
    return found is not None and issubclass(found, BaseException)


def has_member(known: type, name: str) -> bool:
    """Whether a class of Python, or its instances, have an attribute."""
    return any(name in vars(kind) for kind in known.__mro__) or (
        name in ("_value_", "_name_") and issubclass(known, enum.Enum)
    )


def tells_all(dotted: str) -> bool:
    """Whether a class of Python has no attributes but those that its class shows: others set some in `__init__`."""
    module = dotted.rpartition(".")[0]
    return _ALIASES.get(module, module) in _PLAIN and python_class(dotted) is not None


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
DefinitionNode = FunctionNode | ast.ClassDef
REFUSALS = (SyntaxError, ValueError, RecursionError, MemoryError, UnicodeError)
"""What Python's parser may raise for text that is not its Python."""


@contextmanager
def _calm() -> Iterator[None]:
    """No garbage collection and no warnings. Collecting while trees grow costs three times their parsing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()


def decode(data: bytes) -> str:
    """Text of a source file with its declared encoding, without byte order mark, lines ending in a newline character.

    Raises one of REFUSALS.
    """
    return importlib.util.decode_source(data)


def parse(text: str) -> ast.Module:
    """Raises one of REFUSALS."""
    with _calm():
        return ast.parse(text)


@lru_cache(maxsize=65536)
def parse_expression(source: str) -> ast.expr | None:
    """The tree of an expression as `Lines.of` cut it out; None if it is none."""
    try:
        with _calm():
            return ast.parse(f"({source}\n)", mode="eval").body
    except REFUSALS:
        return None


def _range(node: Any) -> tuple[int, int, int, int]:
    """First and last line, 0-based, and the columns of a node that has a place."""
    return node.lineno - 1, node.end_lineno - 1, node.col_offset, node.end_col_offset


class Lines:
    """The text of a file, for cutting out nodes by their positions, which count UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.encode("utf-8", "surrogatepass").split(b"\n")

    def of(self, node: ast.AST) -> str:
        """Source of an expression or statement."""
        first, last, start, end = _range(node)
        if first == last:
            return self.lines[first][start:end].decode("utf-8", "replace")
        parts = [self.lines[first][start:], *self.lines[first + 1 : last], self.lines[last][:end]]
        return b"\n".join(parts).decode("utf-8", "replace")

    def block(self, start: int, end: int) -> str:
        """Lines `start` to `end`, 1-based, both included, as a piece of Python that stands alone.

        An indented block is put under an `if`: taking the indentation away would change strings over several lines.
        """
        lines = self.lines[start - 1 : end]
        text = b"\n".join(lines).decode("utf-8", "replace") + "\n"
        return f"if 1:\n{text}" if lines and lines[0][:1] in (b" ", b"\t") else text


def definition(block: str) -> DefinitionNode | None:
    """The class or function that a block consists of. Positions are those within the block."""
    try:
        body = parse(block).body
    except REFUSALS:
        return None
    node = body[0] if body else None
    if isinstance(node, ast.If):
        node = node.body[0]
    return node if isinstance(node, DefinitionNode) else None


def digest(block: str, name: str) -> str:
    """Equal for definitions that differ only in place, layout, comments, docstrings and their own name."""
    try:
        with _calm():
            compiled = compile(
                block, "", "exec", flags=features.annotations.compiler_flag, dont_inherit=True, optimize=2
            )
    except REFUSALS:
        return ""
    mangled = f"_{name.lstrip('_')}__"
    found = hashlib.blake2b(digest_size=16)
    found.update(repr(_shape(compiled, name, mangled)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _shape(code: CodeType, name: str, mangled: str) -> tuple[object, ...]:
    """What a code object does, without where it stands and what it is called."""

    def anonymous(text: str) -> str:
        return "@" if text == name else text.replace(mangled, "@__") if mangled in text else text

    def constant(value: object) -> object:
        if isinstance(value, CodeType):
            return _shape(value, name, mangled)
        if isinstance(value, str):
            return anonymous(value.rpartition(".")[2]) if value.endswith(f".{name}") else anonymous(value)
        if isinstance(value, frozenset):
            return sorted(map(repr, value))
        return (type(value).__name__, value)

    names = tuple(map(anonymous, code.co_names))
    variables = tuple(map(anonymous, code.co_varnames + code.co_freevars + code.co_cellvars))
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    return (code.co_code, names, variables, counts, tuple(constant(value) for value in code.co_consts))


def dotted_name(node: ast.expr | None) -> str:
    """ "a.b.c" for a chain of plain names; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
