"""Turn source into trees and back: parse it, cut pieces out by their place, and say what modules are called."""

from __future__ import annotations
import __future__ as features

import ast
import gc
import hashlib
import importlib.util
import warnings
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
DefinitionNode = FunctionNode | ast.ClassDef
REFUSALS = (SyntaxError, ValueError, RecursionError, MemoryError, UnicodeError)
"""What Python's parser may raise for text that is not its Python."""


_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


class SourceTree(Protocol):
    """Python files below the folders that imports start from: a release of a package, or any other."""

    def files(self) -> Sequence[str]:
        """Sorted paths of the .py and .pyi files, as an import finds them ("vllm/__init__.py")."""
        ...

    def read(self, path: str) -> bytes:
        """Content of one of `files`. Raises KeyError for others, ToolError for one that is damaged."""
        ...

    def folders(self) -> frozenset[str]:
        """All folders that hold one of `files`, at any depth, with their parents: each counts as a package."""
        ...

    def native(self) -> frozenset[str]:
        """Dotted names of extension modules (.so, .pyd): they exist, and cannot be read."""
        ...

    def roots(self) -> frozenset[str]:
        """Dotted names that the tree owns: top-level packages and modules, or for a namespace that several trees share
        the parts below it ("megatron.core")."""
        ...

    def digest(self) -> str:
        """Return a key for caches: equal for equal content of `files`."""
        ...


@contextmanager
def calm() -> Iterator[None]:
    """No garbage collection and no warnings. Collecting while trees grow costs three times their parsing, and half of
    an audit's time: hundreds of thousands of nodes stay, and each collection goes through them. Also a decorator."""
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


def parse(source: str | bytes) -> ast.Module:
    """Parse a file of any encoding. Raises one of REFUSALS."""
    with calm():
        return ast.parse(source)


def parsed(source: str | bytes) -> ast.Module | None:
    """Parse a file; None for what Python's parser refuses."""
    try:
        return parse(source)
    except REFUSALS:
        return None


def parsed_file(path: Path) -> ast.Module | None:
    """Parse a file; None if it is none, cannot be read, went away meanwhile, or is not this Python's."""
    try:
        return parsed(path.read_bytes()) if path.is_file() else None
    except OSError:
        return None


@lru_cache(maxsize=65536)
def parse_expression(source: str) -> ast.expr | None:
    """Parse an expression as `Lines.of` cut it out; None if it is none."""
    try:
        with calm():
            return ast.parse(f"({source}\n)", mode="eval").body
    except REFUSALS:
        return None


def span_of(node: Any) -> tuple[int, int, int, int]:
    """Line, column, end line and end column of a node that has a place, as `ast` counts them."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


LONGEST = 2000
"""Characters of a value that may tell its type."""


class Lines:
    """The text of a file, for cutting out nodes by their positions, which count UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.encode("utf-8", "surrogatepass").split(b"\n")

    def of(self, node: ast.AST) -> str:
        """Source of an expression or statement."""
        return self.between(*span_of(node))

    def short(self, node: ast.AST | None) -> str:
        """Source of a value; long ones are data, of no use for types: "..."."""
        source = "" if node is None else self.of(node)
        return source if len(source) < LONGEST else "..."

    def between(self, line: int, column: int, end_line: int, end_column: int) -> str:
        """Source between two places, as `ast` counts them: lines from 1, columns in bytes from 0."""
        if line == end_line:
            return self.lines[line - 1][column:end_column].decode("utf-8", "replace")
        middle = self.lines[line : end_line - 1]
        parts = [self.lines[line - 1][column:], *middle, self.lines[end_line - 1][:end_column]]
        return b"\n".join(parts).decode("utf-8", "replace")

    def block(self, start: int, end: int) -> str:
        """Lines `start` to `end`, 1-based, both included, as a piece of Python that stands alone."""
        return alone(self.text_of(start, end) + "\n")

    def text_of(self, start: int, end: int) -> str:
        """Lines `start` to `end`, 1-based, both included."""
        return b"\n".join(self.lines[start - 1 : end]).decode("utf-8", "replace")


def alone(text: str) -> str:
    """Lines of a file as a piece of Python that stands alone.

    Indented ones are put under an `if`: taking the indentation away would change strings over several lines.
    """
    return f"if 1:\n{text}" if text[:1] in (" ", "\t") else text


def definition(block: str) -> DefinitionNode | None:
    """Parse the class or function that a block consists of. Positions are those within the block."""
    tree = parsed(block)
    node = tree.body[0] if tree is not None and tree.body else None
    if isinstance(node, ast.If):
        node = node.body[0]
    return node if isinstance(node, DefinitionNode) else None


def digest(block: str, name: str) -> str:
    """Equal for definitions that differ only in place, layout, comments, docstrings and their own name."""
    try:
        with calm():
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
    """Describe what a code object does, without where it stands and what it is called."""

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
    if isinstance(node, ast.Name):  # by far the most
        return node.id
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def string_of(node: ast.AST | None) -> str | None:
    """Return the value of a string constant; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def children(node: ast.AST) -> list[ast.AST]:
    """List what is directly inside a node, without load and store marks; `ast.iter_child_nodes` takes twice as long."""
    found: list[ast.AST] = []
    inside = node.__dict__
    for name in node._fields:
        value = inside.get(name)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and name != "ctx":
            found.append(value)
    return found


def each_statement(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, handlers and cases of a file in the order of `ast.walk`, without a look at expressions."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # grows while it is read: breadth first
        inside = node.__dict__
        for name in _BLOCKS:
            if name in inside:
                waiting.extend(inside[name])
        yield node


def defined_names(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name that statements define at their own level, with its statement: functions, classes, assignments.

    Example: "a, b = 1, 2" defines a and b.
    """
    for node in body:
        if isinstance(node, DefinitionNode):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                stored = (each for each in ast.walk(target) if isinstance(each, ast.Name))
                yield from ((each.id, node) for each in stored if isinstance(each.ctx, ast.Store))


def methods_in(body: Iterable[ast.stmt]) -> Iterator[FunctionNode]:
    """Yield the functions of a class body, also those under `if` and `try`."""
    for node in body:
        if isinstance(node, FunctionNode):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from methods_in([*node.body, *node.orelse])


def module_name(path: str) -> tuple[str, bool]:
    """Dotted name of a file, and whether it is a package: ("areal.api", True) of "areal/api/__init__.py"."""
    parts = path.rpartition(".")[0].split("/")
    if parts[-1] == "__init__":
        return ".".join(parts[:-1]), True
    return ".".join(parts), False


def package_of(path: str) -> str:
    """Dotted name of the package that relative imports of a file start from."""
    dotted, is_package = module_name(path)
    return dotted if is_package else dotted.rpartition(".")[0]


def absolute(package: str, level: int, module: str) -> str:
    """Dotted path of an import that starts `level` dots up from a package; "" for one that leaves its top."""
    if not level:
        return module
    parts = package.split(".")
    if level > len(parts):
        return ""
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{module}".strip(".")


def text_of(node: ast.expr | None) -> str:
    """Join the constant parts of a message: strings, f-strings, concatenations."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [
            part.value
            if isinstance(part, ast.Constant)
            else f"{{{(ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else '')}}}"
            for part in node.values
        ]
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + (text_of(node.right) if isinstance(node.op, ast.Add) else "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return text_of(node.func.value)
    if isinstance(node, ast.Call) and node.args:
        return text_of(node.args[0])
    return ""


POSITIONAL = ("positional-only", "positional")


def each_parameter(arguments: ast.arguments) -> Iterator[tuple[ast.arg, str, ast.expr | None]]:
    """Yield parameters in order, with their kinds and defaults.

    Kinds are "positional-only", "positional", "star", "keyword-only" and "double-star".
    """
    positional = [(entry, "positional-only") for entry in arguments.posonlyargs]
    positional += [(entry, "positional") for entry in arguments.args]
    missing = len(positional) - len(arguments.defaults)
    for index, (entry, kind) in enumerate(positional):
        yield entry, kind, arguments.defaults[index - missing] if index >= missing else None
    if arguments.vararg is not None:
        yield arguments.vararg, "star", None
    for entry, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield entry, "keyword-only", default
    if arguments.kwarg is not None:
        yield arguments.kwarg, "double-star", None


def parameter_names(arguments: ast.arguments) -> list[str]:
    """List the parameters that an argument can be named after, in order."""
    return [entry.arg for entry in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
