"""Reads one file with LibCST and byte offsets, and collects splices for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import libcst
from libcst.metadata import (
    ByteSpanPositionProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    ScopeProvider,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from libcst.metadata import CodeRange, CodeSpan

    from tooling.upgrade.findings import AuditFinding


class LeftAloneError(Exception):
    """A finding that is not fixed; the text says why, for people."""


@dataclass(frozen=True, slots=True, order=True)
class TextReplacement:
    """`text` in place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: bytes


@dataclass
class EditableText:
    """A file as lines, and the splices for it. Raises LeftAloneError when it is not UTF-8."""

    path: str
    data: bytes
    splices: list[TextReplacement] = field(default_factory=list)

    @cached_property
    def _starts(self) -> list[int]:
        """Byte offset of each line, and of the end. Only \\n, \\r\\n and \\r end a line, as for Python's tokenizer."""
        try:
            self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LeftAloneError("the file is not UTF-8") from error
        return [0, *accumulate(map(len, self.data.splitlines(keepends=True)))]

    def line_span(self, first: int, last: int) -> tuple[int, int]:
        """Byte offsets of whole lines, counted from 1. Raises LeftAloneError where the file has no such line."""
        if not 1 <= first <= len(self._starts):
            raise LeftAloneError("its line lies behind the end of the file")
        return self._starts[first - 1], self._starts[min(last, len(self._starts) - 1)]

    def text_spans(self, line: int, column: int, end_line: int) -> list[tuple[int, int]]:
        """Byte offsets of what holds text, not code, for a finding at this place: all of its lines."""
        return [self.line_span(line, max(line, end_line))]

    def put(self, start: int, end: int, text: str) -> None:
        """Remember a splice. The same splice twice is one. Raises LeftAloneError if it overlaps another."""
        new = TextReplacement(start, end, text.encode())
        if new in self.splices:
            return
        for other in self.splices:
            apart = new.end <= other.start or other.end <= new.start
            if not apart or (new.start == new.end == other.start == other.end):
                raise LeftAloneError("two edits would overlap")
        self.splices.append(new)

    def append(self, at: int, text: str) -> None:
        """Insert text at a place, behind what was inserted there before."""
        for number, other in enumerate(self.splices):
            if other.start == other.end == at:
                self.splices[number] = TextReplacement(at, at, other.text + text.encode())
                return
        self.put(at, at, text)

    def result(self) -> bytes:
        """Return the file with all splices done."""
        data = self.data
        for splice in sorted(self.splices, reverse=True):
            data = data[: splice.start] + splice.text + data[splice.end :]
        return data


@dataclass
class EditableSource(EditableText):
    """A parsed file of Python. Raises LeftAloneError when it cannot be parsed, or is not UTF-8."""

    def __post_init__(self) -> None:
        try:
            self._text = self.data.decode("utf-8")
            self._wrapper = MetadataWrapper(libcst.parse_module(self.data), unsafe_skip_copy=True)
        except (UnicodeDecodeError, libcst.ParserSyntaxError, RecursionError) as error:
            raise LeftAloneError(f"the file cannot be parsed: {type(error).__name__}") from error
        if self._text.startswith("\ufeff") or self._wrapper.module.encoding.lower().replace("-", "") not in (
            "utf8",
            "ascii",
        ):
            raise LeftAloneError("the file is not plain UTF-8")

    @cached_property
    def ranges(self) -> Mapping[Any, CodeRange]:
        """Node to its range: lines from 1, columns in characters from 0."""
        return self._wrapper.resolve(PositionProvider)

    @cached_property
    def scopes(self) -> Mapping[Any, Any]:
        """Node to its scope."""
        return self._wrapper.resolve(ScopeProvider)

    @cached_property
    def _spans(self) -> Mapping[Any, CodeSpan]:
        return self._wrapper.resolve(ByteSpanPositionProvider)

    def span(self, node: libcst.CSTNode) -> tuple[int, int]:
        """Byte offsets of a node, without the blanks around it."""
        place = self._spans[node]
        return place.start, place.start + place.length

    def start(self, node: libcst.CSTNode) -> tuple[int, int]:
        """Line, and column in bytes as `ast` counts."""
        line = self.ranges[node].start.line
        return line, self._spans[node].start - self._starts[line - 1]

    def indentation(self, line: int) -> str:
        """Blanks the line begins with."""
        text = self.data[self._starts[line - 1] : self._starts[line]]
        return text[: len(text) - len(text.lstrip(b" \t"))].decode()

    @cached_property
    def parents(self) -> Mapping[Any, Any]:
        """Node to the node around it."""
        return self._wrapper.resolve(ParentNodeProvider)

    def whole_span(self, node: libcst.CSTNode) -> tuple[int, int]:
        """Byte offsets of an expression with the parentheses around it, which `span` leaves out."""
        opening, closing = getattr(node, "lpar", ()), getattr(node, "rpar", ())
        return self.span(opening[0] if opening else node)[0], self.span(closing[-1] if closing else node)[1]

    def cut(self, siblings: Sequence[libcst.CSTNode], part: libcst.CSTNode) -> None:
        """Take one of several parts of a list out, with its comma. Raises LeftAloneError for one with a comment."""
        index = next(number for number, each in enumerate(siblings) if each is part)
        start, end = self.span(part)
        if index + 1 < len(siblings):
            end = self.span(siblings[index + 1])[0]
        elif index:
            start = self.span(siblings[index - 1])[1]
        else:
            tail = self.data[end:].lstrip()
            end += len(self.data[end:]) - len(tail) + 1 if tail.startswith(b",") else 0
        if b"#" in self.data[start:end]:
            raise LeftAloneError("a comment beside it would be lost")
        self.put(start, end, "")

    def text_spans(self, line: int, column: int, end_line: int) -> list[tuple[int, int]]:
        """Byte offsets of the strings that begin in these lines, at the column or behind it, or reach into them; of an
        f-string only what is text."""
        return [
            self.span(node)
            for node in self.nodes(libcst.SimpleString, libcst.FormattedStringText)
            if (line, column) <= self.start(node) < (max(line, end_line) + 1, 0)
            or self.start(node) < (line, column) < (self.ranges[node].end.line, self.ranges[node].end.column)
        ]

    def around(self, node: libcst.CSTNode) -> Iterator[Any]:
        """Nodes around a node, the innermost first."""
        while (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    @property
    def newline(self) -> str:
        """How lines end here."""
        return self._wrapper.module.default_newline

    def nodes(self, *kinds: type) -> Iterator[Any]:
        """All nodes of these classes, in order of the text."""
        found: list[Any] = [node for node in self.ranges if isinstance(node, kinds)]
        return iter(sorted(found, key=self.start))

    def result(self) -> bytes:
        """Return the file with all splices done. Raises LeftAloneError if that does not compile."""
        data = super().result()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Parsing is not enough: only the compiler refuses an `await` outside of an asynchronous function
                compile(data, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise LeftAloneError(f"the edit would not compile: {error}") from error
        return data


def called(source: EditableSource, finding: AuditFinding) -> Any:
    """Return the call that a finding is about: of several that begin at one place the one of that name."""
    name = finding.symbol.rpartition(".")[2]
    found = [
        call
        for call in source.nodes(libcst.Call)
        if place(finding) in (source.start(call), source.start(getattr(call.func, "attr", call)))
    ]
    of_name = [call for call in found if getattr(getattr(call.func, "attr", call.func), "value", "") == name]
    if len(of_name or found) != 1:
        raise LeftAloneError(f"{name} is not called once at this place")
    return (of_name or found)[0]


def place(finding: AuditFinding) -> tuple[int, int]:
    """Line and column of a finding, as `EditableSource.start` gives those of a node."""
    return finding.line, finding.column
