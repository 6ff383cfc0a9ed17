"""Find the one literal that is a registry: LibCST locates, nothing is changed here.

A table is a name that is set exactly once, at the top level of its module, to a literal whose keys are plain strings:
`X = {..}`, `X: T = [..]`, `X = frozenset({..})`, `X = OrderedDict([("a", "b")])`. Every other shape is refused with
its line.
"""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from tooling.kit.edits.text import SourceText, binding_lines, read_source, refusal
from tooling.python.source import parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import libcst as cst
    from libcst.metadata import CodeSpan

Kind = Literal["dict", "pairs", "list", "tuple", "set"]
MAPPING_CALLS: Final = frozenset(
    {"dict", "OrderedDict", "collections.OrderedDict", "MappingProxyType", "types.MappingProxyType"}
)
SEQUENCE_CALLS: Final = frozenset({"frozenset", "list", "set", "tuple"})


@dataclass(frozen=True, slots=True)
class TableItem:
    """One entry of a table; offsets count in `SourceText.data`."""

    key: str
    value: str | None
    """None when it is not a string; "" in sequences."""
    quote: str
    start: int
    end: int
    comma: int
    """Offset of the comma behind it, -1 when there is none."""

    @property
    def after(self) -> int:
        """Offset behind the entry and its comma."""
        return self.end if self.comma < 0 else self.comma + 1


@dataclass(frozen=True, slots=True)
class LocatedTable:
    """A located registry."""

    text: SourceText
    name: str
    kind: Kind
    open: int
    """Offset behind the opening bracket."""
    close: int
    """Offset of the closing bracket."""
    call: tuple[int, int] | None
    """The same two offsets for the parentheses of a call around the literal."""
    unit: bytes
    """One step of indentation in this file."""
    items: tuple[TableItem, ...]

    @property
    def keys(self) -> list[str]:
        """Return the keys in the order of the source."""
        return [item.key for item in self.items]

    @property
    def one_line(self) -> bool:
        """Check whether the literal, brackets included, is on one line."""
        return self.text.line(self.open) == self.text.line(self.close)

    def find(self, key: str) -> TableItem | None:
        """Return the entry of that key."""
        return next((item for item in self.items if item.key == key), None)

    def line(self, item: TableItem | None = None) -> int:
        """Return the line of an entry, or of the table."""
        return self.text.line(item.start if item else self.open - 1)


@dataclass(frozen=True, slots=True)
class ParsedModule:
    """A file parsed by both parsers."""

    text: SourceText
    tree: ast.Module
    syntax: cst.Module


def parse_module(source: bytes, file: str, fix: str) -> ParsedModule:
    """Parse a file with both parsers.

    Raises RegistryShapeError for what is not Python, what LibCST does not give back byte for byte (form feeds), and
    what is nested too deeply to be walked.
    """
    import libcst as cst

    text = read_source(source, file, fix)
    try:
        tree = parse(text.text)
        syntax = cst.parse_module(text.text)
        code = syntax.code.encode("utf-8")
    except SyntaxError as error:
        raise refusal(file, error.lineno or 1, f"registry unreadable: {error.msg}", fix) from error
    except cst.ParserSyntaxError as error:
        raise refusal(file, error.raw_line, f"registry unreadable: {error.message}", fix) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise refusal(file, 1, f"registry unreadable: {type(error).__name__}: {error}", fix) from error
    if code != text.data:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(code, text.data, strict=False))
        line = text.data.count(b"\n", 0, sum(1 for _ in same)) + 1
        raise refusal(file, line, "LibCST does not give this line back as it is (a form feed?)", fix)
    return ParsedModule(text, tree, syntax)


def find_table(module: ParsedModule, name: str, *, mapping: bool, fix: str) -> LocatedTable:
    """Return the registry called `name`.

    Raises RegistryShapeError with file:line for every shape described above as refused, and for one that is nested too
    deeply to be measured.
    """
    line, small, value, begin = _assignment(module, name, fix)
    try:
        spans, shift = _spans(module, line, small, begin)
    except RecursionError as error:
        raise refusal(module.text.file, module.text.line(begin), f"{name} is nested too deeply", fix) from error
    table = _LiteralReader(module, name, mapping, fix, spans, shift).table(small, value)
    seen: set[str] = set()
    for item in table.items:
        if item.key in seen:
            raise refusal(module.text.file, table.line(item), f"{name} has the key {item.key!r} twice", fix)
        seen.add(item.key)
    return table


def _assignment(
    module: ParsedModule, name: str, fix: str
) -> tuple[cst.SimpleStatementLine, cst.BaseSmallStatement, cst.BaseExpression, int]:
    """Return (its line, the assignment, the right side, offset of the assignment)."""
    import libcst as cst

    file, lines = module.text.file, binding_lines(module.tree, name)
    if not lines:
        raise refusal(file, 1, f"{name} is not set in this module", fix)
    if len(lines) > 1:
        raise refusal(file, lines[1], f"{name} is set or changed more than once (first in line {lines[0]})", fix)
    node = assignment_to(module.tree, name)
    simple = (line for line in module.syntax.body if isinstance(line, cst.SimpleStatementLine))
    for line, small in ((owner, part) for owner in simple for part in owner.body):
        if isinstance(small, cst.Assign | cst.AnnAssign) and _targets(small) == [name] and small.value and node:
            return line, small, small.value, module.text.offset(node.lineno, node.col_offset)
    raise refusal(file, lines[0], f"{name} is not set by one plain assignment at the top level", fix)


def assignment_to(tree: ast.Module, name: str) -> ast.Assign | ast.AnnAssign | None:
    """Return the top-level statement `name = ..` or `name: T = ..`."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node
    return None


def _spans(
    module: ParsedModule, line: cst.SimpleStatementLine, small: cst.BaseSmallStatement, begin: int
) -> tuple[Mapping[cst.CSTNode, CodeSpan], int]:
    """Return positions in this one statement, and what to add to them: where `ast` says that it begins.

    Measuring one statement keeps large modules cheap.
    """
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    alone = module.syntax.with_changes(header=[], body=[line], footer=[])
    spans = MetadataWrapper(alone, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    return spans, begin - spans[small].start


def _targets(statement: cst.Assign | cst.AnnAssign) -> list[str]:
    import libcst as cst

    targets = [part.target for part in statement.targets] if isinstance(statement, cst.Assign) else [statement.target]
    return [target.value if isinstance(target, cst.Name) else "" for target in targets]


@dataclass(frozen=True, slots=True)
class _LiteralReader:
    """Reads the right side of the assignment."""

    module: ParsedModule
    name: str
    mapping: bool
    fix: str
    spans: Mapping[cst.CSTNode, CodeSpan]
    shift: int

    def start(self, node: cst.CSTNode) -> int:
        """Return the offset of a node, without the blanks it owns."""
        return self.shift + self.spans[node].start

    def end(self, node: cst.CSTNode) -> int:
        """Return the offset behind a node, without the blanks it owns."""
        return self.start(node) + self.spans[node].length

    def table(self, statement: cst.BaseSmallStatement, value: cst.BaseExpression) -> LocatedTable:
        literal, call = self._unwrap(value)
        kind, opening, closing = self._brackets(literal, wrapped=call is not None)
        if kind is None or opening is None or closing is None:
            expected = "a literal {..}" if self.mapping else "a literal list, tuple or set"
            raise self._refuse(statement, f"{self.name} is {_describe(literal)}, expected {expected}")
        elements: Sequence[cst.BaseElement | cst.BaseDictElement] = literal.elements  # type: ignore[attr-defined]  # has a kind
        return LocatedTable(
            text=self.module.text,
            name=self.name,
            kind=kind,
            open=self.start(opening) + 1,
            close=self.end(closing) - 1,
            call=call,
            unit=self.module.syntax.default_indent.encode(),
            items=tuple(self._item(element, kind) for element in elements),
        )

    def _unwrap(self, value: cst.BaseExpression) -> tuple[cst.BaseExpression, tuple[int, int] | None]:
        """`OrderedDict(LITERAL)` -> LITERAL and the offsets of the parentheses."""
        import libcst as cst

        calls = MAPPING_CALLS if self.mapping else SEQUENCE_CALLS
        if not isinstance(value, cst.Call) or dotted_text(value.func) not in calls:
            return value, None
        if len(value.args) != 1 or value.args[0].keyword is not None or value.args[0].star:
            raise self._refuse(value, f"{self.name} is built by a call without a single literal, expected one literal")
        opening = self.module.text.data.index(b"(", self.end(value.func)) + 1
        return value.args[0].value, (opening, self.end(value) - 1)

    def _brackets(
        self, literal: cst.BaseExpression, *, wrapped: bool
    ) -> tuple[Kind | None, cst.CSTNode | None, cst.CSTNode | None]:
        import libcst as cst

        if isinstance(literal, cst.Dict):
            return ("dict" if self.mapping else None), literal.lbrace, literal.rbrace
        if self.mapping and not wrapped:
            return None, None, None
        if isinstance(literal, cst.List):
            return ("pairs" if self.mapping else "list"), literal.lbracket, literal.rbracket
        if isinstance(literal, cst.Tuple) and literal.lpar:
            return ("pairs" if self.mapping else "tuple"), literal.lpar[-1], literal.rpar[0]
        if isinstance(literal, cst.Set) and not self.mapping:
            return "set", literal.lbrace, literal.rbrace
        return None, None, None

    def _item(self, element: cst.BaseElement | cst.BaseDictElement, kind: Kind) -> TableItem:
        import libcst as cst

        if isinstance(element, cst.StarredElement | cst.StarredDictElement):
            raise self._refuse(element, f"{self.name} unpacks another collection, expected string literals only")
        key_node, value_node = self._parts(element, kind)
        key = _string(key_node)
        if key is None:
            raise self._refuse(element, f"{self.name} has a key that is not a string literal")
        comma = element.comma if isinstance(element.comma, cst.Comma) else None
        plain = isinstance(key_node, cst.SimpleString) and len(key_node.quote) == 1
        return TableItem(
            key=key,
            value=_string(value_node) if value_node else "",
            quote=cast("cst.SimpleString", key_node).quote if plain else '"',
            start=self.start(element),
            end=self.end(element),
            comma=self.start(comma) if comma else -1,
        )

    def _parts(
        self, element: cst.BaseElement | cst.BaseDictElement, kind: Kind
    ) -> tuple[cst.BaseExpression, cst.BaseExpression | None]:
        import libcst as cst

        if isinstance(element, cst.DictElement):
            return element.key, element.value
        if kind != "pairs":
            return element.value, None
        pair = element.value
        if isinstance(pair, cst.Tuple) and pair.lpar and len(pair.elements) == 2:
            return pair.elements[0].value, pair.elements[1].value
        raise self._refuse(element, f'{self.name} has an element that is not a ("key", "value") pair')

    def _refuse(self, node: cst.CSTNode, why: str) -> Exception:
        return refusal(self.module.text.file, self.module.text.line(self.start(node)), why, self.fix)


def _string(node: cst.BaseExpression) -> str | None:
    import libcst as cst

    if not isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def dotted_text(node: object) -> str:
    """Return "a.b.c" for names joined by dots; "" for anything else inside."""
    import libcst as cst

    if isinstance(node, cst.Attribute):
        return f"{dotted_text(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _describe(node: cst.BaseExpression) -> str:
    """Say what the table is instead, for a message."""
    import libcst as cst

    if isinstance(node, cst.Tuple) and not node.lpar:
        return "a tuple without parentheses"
    names: tuple[tuple[type[cst.CSTNode], str], ...] = (
        (cst.Dict, "a mapping"),
        (cst.Call, "built by a call"),
        (cst.BinaryOperation, "put together by an operator"),
        (cst.Tuple, "a tuple"),
        (cst.List, "a list"),
        (cst.Set, "a set"),
        (cst.DictComp, "a comprehension"),
        (cst.BaseComp, "a comprehension"),
    )
    return next((text for kind, text in names if isinstance(node, kind)), f"{type(node).__name__}")
