"""Source text as bytes with line arithmetic, and the proof that an edit did what it was meant to do and nothing else.

Everything counts in `SourceText.data`, which is UTF-8 without a byte order mark: the spans of LibCST and the columns of
`ast` count that way even for a latin-1 file. `SourceText.encode` goes back to the encoding of the file.

The proof: the syntax tree of the whole module after the edit must equal the tree before it, changed in exactly the
intended way, and every comment must still be behind the same code. It uses the standard library's parser, not the one
that located the place, so that a mistake of one is found by the other.
"""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tooling.cli.errors import MergeConflictError, RegistryShapeError
from tooling.python.source import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_CONFLICT = re.compile(rb"^<{7} .*?^={7}\r?$.*?^>{7} ", re.MULTILINE | re.DOTALL)
_BLANK_OR_COMMENT = re.compile(rb"[ \t]*(#[^\r\n]*)?(\r?\n|\Z)")


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """The outcome of an edit: `source` is the input itself when nothing had to change."""

    source: bytes
    changed: bool
    line: int
    """Where the entry stands, or stood before its removal; 1-based, 0 when there is none."""
    note: str = ""
    """What a person may want to know: "REWARDS is not sorted: added at its end". Mostly empty."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """Decoded source of one file."""

    file: str
    data: bytes
    """UTF-8, without a byte order mark."""
    encoding: str
    """Of the file, as `tokenize.detect_encoding` names it: "utf-8", "utf-8-sig", "iso-8859-1"."""
    starts: tuple[int, ...]
    """Offset of each line."""

    @property
    def text(self) -> str:
        """Return the source as characters, for parsers."""
        return self.data.decode("utf-8")

    def encode(self, data: bytes) -> bytes:
        """Return edited `data` in the encoding of the file.

        Raises RegistryShapeError for what it cannot hold; string literals can be escaped (`string_literal`), names
        cannot.
        """
        try:
            return data.decode("utf-8").encode(self.encoding)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            fix = "save the file as UTF-8, or use another name"
            raise refusal(self.file, 1, f"{odd!r} cannot be written in {self.encoding}", fix) from error

    def with_data(self, data: bytes) -> SourceText:
        """Return the same file with other text."""
        return SourceText(self.file, data, self.encoding, line_starts(data))

    def line(self, offset: int) -> int:
        """Return the 1-based number of the line that holds the offset."""
        return bisect.bisect_right(self.starts, offset)

    def line_start(self, offset: int) -> int:
        """Return the offset of the first byte of that line."""
        return self.starts[self.line(offset) - 1]

    def next_line(self, offset: int) -> int:
        """Return the offset of the first byte of the following line; the end of the text after the last one."""
        line = self.line(offset)
        return self.starts[line] if line < len(self.starts) else len(self.data)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a 1-based line and a column in UTF-8 bytes, as `ast` gives them."""
        return self.starts[line - 1] + column

    def indentation(self, offset: int) -> bytes:
        """Return the leading blanks of the line that holds the offset."""
        line = self.data[self.line_start(offset) : self.next_line(offset)]
        return line[: len(line) - len(line.lstrip(b" \t"))]

    def starts_line(self, offset: int) -> bool:
        """Check whether there are only blanks before the offset on its line."""
        return not self.data[self.line_start(offset) : offset].strip(b" \t")

    def ends_line(self, offset: int) -> bool:
        """Check whether only blanks and a comment follow the offset on its line."""
        return _BLANK_OR_COMMENT.match(self.data, offset) is not None

    def newline(self, offset: int) -> bytes:
        """Return the ending of the line that holds the offset; that of the first line when it has none."""
        return _ending(self.data[: self.next_line(offset)]) or _ending(self.data[: self.next_line(0)]) or b"\n"


def read_source(source: bytes, file: str, fix: str) -> SourceText:
    """Decode Python source.

    Raises RegistryShapeError when its encoding is unknown or wrong, or does not give the file back byte for byte, or
    when lines end in a lone carriage return, which parsers disagree about.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
        data, same = text.encode("utf-8"), text.encode(encoding) == source
    except (SyntaxError, LookupError, UnicodeError) as error:
        raise refusal(file, 1, f"registry unreadable: {error}", fix) from error
    if not same:  # "\u0041" in a raw_unicode_escape file would come back as "A"
        raise refusal(file, 1, f"an edit would change bytes elsewhere: {encoding} has several ways to write them", fix)
    lone = re.search(rb"\r(?!\n)", data)
    if lone:
        raise refusal(file, data.count(b"\n", 0, lone.start()) + 1, "a carriage return without a line feed", fix)
    return SourceText(file, data, encoding, line_starts(data))


def line_starts(data: bytes) -> tuple[int, ...]:
    """Return the offset of each line; a final newline starts no line of its own."""
    starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]
    return tuple(starts[:-1]) if len(starts) > 1 and starts[-1] == len(data) else tuple(starts)


def conflict_lines(source: bytes) -> list[int]:
    """Return the 1-based lines where conflicts begin that git left and nobody resolved yet.

    A conflict has lines of "<<<<<<< ", "=======" and ">>>>>>> ", in this order.
    """
    return [source.count(b"\n", 0, found.start()) + 1 for found in _CONFLICT.finditer(source)]


def refuse_conflicts(source: bytes, file: str) -> None:
    """Raise MergeConflictError for a file that holds conflict markers: whatever is done to it would be guessed."""
    if lines := conflict_lines(source):
        numbers = ", ".join(map(str, lines))
        raise MergeConflictError(
            f"holds conflict markers in line{'s' if len(lines) > 1 else ''} {numbers}; nothing was written",
            where=f"{file}:{lines[0]}",
            fix="resolve the conflict first",
        )


def refusal(file: str, line: int, why: str, fix: str) -> RegistryShapeError:
    """Return the error for a shape that is not edited; `fix` already holds the line to paste."""
    return RegistryShapeError(why, where=f"{file}:{line}", fix=fix)


def string_literal(value: str, quote: str = '"', encoding: str = "utf-8") -> str:
    """Return a string literal with that quote; characters that cannot be printed or encoded are escaped.

    Example: string_literal('a"b') == '"a\\\\"b"'.
    """

    def escaped(character: str) -> str:
        if character in {quote, "\\"}:
            return "\\" + character
        try:
            character.encode(encoding)
        except UnicodeEncodeError:
            return ascii(character)[1:-1]
        return character if character.isprintable() else ascii(character)[1:-1]

    return quote + "".join(map(escaped, value)) + quote


def _ending(data: bytes) -> bytes:
    if data.endswith(b"\r\n"):
        return b"\r\n"
    return b"\n" if data.endswith(b"\n") else b""


_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PLACED = (ast.stmt, ast.expr, ast.alias, ast.excepthandler, ast.pattern)
_CHANGES: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "remove", "reverse"}
    | {"setdefault", "sort", "update"}
)


def binding_lines(tree: ast.Module, name: str) -> list[int]:
    """Return the 1-based lines that bind, rebind, delete or change `name` at module level, in order."""
    lines = {
        node.lineno
        for node in module_scope(tree)
        if isinstance(node, _PLACED) and (name in bound_names(node) or _changes(node, name))
    }
    declared = (node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global) and name in node.names)
    return sorted(lines.union(declared))


def module_scope(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every node that runs in the scope of the module: blocks are entered, functions and classes are not."""
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _OWN_SCOPE + _INNER_SCOPE):
            stack.extend(ast.iter_child_nodes(node))


def bound_names(node: ast.AST) -> set[str]:
    """Return the names that this one node (not its children) binds or deletes."""
    if isinstance(node, _OWN_SCOPE):
        return {node.name}
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return {node.id}
    if isinstance(node, ast.alias):
        return {node.asname or node.name.partition(".")[0]}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return {node.name}
    return set()


def _changes(node: ast.AST, name: str) -> bool:
    """Check for `X[k] = v`, `del X[k]`, `X.update(..)`."""
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_name(node.value, name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _CHANGES and _is_name(node.func.value, name)
    return False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


_SILENT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING})


class Comment(NamedTuple):
    """One comment: where it is, the last token before it on its line (commas aside; "" on a line of its own), its
    text."""

    offset: int
    anchor: str
    text: str


def prove(
    before: SourceText,
    after: SourceText,
    change: Callable[[ast.Module], None],
    *,
    line: int,
    fix: str,
    removed: tuple[int, int] = (0, 0),
) -> None:
    """Raise RegistryShapeError unless `after` is `before` with `change` done to its tree.

    removed: span of `before` whose comments go; line: of the table, for the message.
    """
    try:
        expected, actual = parse(before.text), parse(after.text)
        change(expected)
        kept = [mark[1:] for mark in comments(before) if not removed[0] <= mark.offset < removed[1]]
        found = [mark[1:] for mark in comments(after)]
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise refusal(before.file, line, f"the edit could not be proved: {error}", fix) from error
    if not same_tree(expected, actual):
        raise refusal(before.file, line, "the edit could not be proved: it would change more than the entry", fix)
    if kept != found:
        raise refusal(before.file, line, "the edit could not be proved: a comment would move or get lost", fix)


def same_tree(left: ast.AST, right: ast.AST) -> bool:
    """Check whether two trees are equal but for positions.

    Not recursive: a chain of a thousand branches is a deep tree.
    """
    stack: list[tuple[object, object]] = [(left, right)]
    while stack:
        one, other = stack.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, ast.AST):
            stack += [(getattr(one, name, None), getattr(other, name, None)) for name in one._fields]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            stack += zip(one, other, strict=True)
        elif one != other and not (one != one and other != other):  # noqa: PLR0124 - NaN differs from itself
            return False
    return True


def comments(source: SourceText) -> list[Comment]:
    """Return every comment in order. Raises tokenize.TokenError or SyntaxError where the text is not Python."""
    found, row, anchor = [], 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source.text, newline="").readline):
        if token.start[0] != row:
            row, anchor = token.start[0], ""
        if token.type == tokenize.COMMENT:
            offset = source.offset(row, len(token.line[: token.start[1]].encode("utf-8")))
            found.append(Comment(offset, anchor, token.string))
        elif token.type not in _SILENT and token.string != ",":
            row, anchor = token.end[0], token.string
    return found
