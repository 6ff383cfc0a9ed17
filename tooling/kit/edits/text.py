"""Source text as bytes with line arithmetic, whatever its encoding and line endings; and the one way to refuse it.

Everything below counts in `SourceText.data`, which is UTF-8 without a byte order mark: the spans of LibCST and the
columns of `ast` count that way even for a latin-1 file. `SourceText.encode` goes back to the encoding of the file.

Not a parser: nothing here knows Python, except that a comment starts with "#".
"""

from __future__ import annotations

import bisect
import io
import re
import tokenize
from dataclasses import dataclass

from tooling.cli.errors import RegistryShapeError

_BLANK_OR_COMMENT = re.compile(rb"[ \t]*(#[^\r\n]*)?(\r?\n|\Z)")


@dataclass(frozen=True, slots=True)
class Edit:
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
        """For parsers that want characters."""
        return self.data.decode("utf-8")

    def encode(self, data: bytes) -> bytes:
        """Edited `data` in the encoding of the file. Raises RegistryShapeError for what it cannot hold; string literals
        can be escaped (`string_literal`), names cannot."""
        try:
            return data.decode("utf-8").encode(self.encoding)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.end]
            fix = "save the file as UTF-8, or use another name"
            raise refusal(self.file, 1, f"{odd!r} cannot be written in {self.encoding}", fix) from error

    def with_data(self, data: bytes) -> SourceText:
        """The same file with other text."""
        return SourceText(self.file, data, self.encoding, line_starts(data))

    def line(self, offset: int) -> int:
        """1-based number of the line that holds the offset."""
        return bisect.bisect_right(self.starts, offset)

    def line_start(self, offset: int) -> int:
        """Offset of the first byte of that line."""
        return self.starts[self.line(offset) - 1]

    def next_line(self, offset: int) -> int:
        """Offset of the first byte of the following line; the end of the text after the last one."""
        line = self.line(offset)
        return self.starts[line] if line < len(self.starts) else len(self.data)

    def offset(self, line: int, column: int) -> int:
        """Of a 1-based line and a column in UTF-8 bytes, as `ast` gives them."""
        return self.starts[line - 1] + column

    def indentation(self, offset: int) -> bytes:
        """Leading blanks of the line that holds the offset."""
        line = self.data[self.line_start(offset) : self.next_line(offset)]
        return line[: len(line) - len(line.lstrip(b" \t"))]

    def starts_line(self, offset: int) -> bool:
        """Whether only blanks stand before the offset on its line."""
        return not self.data[self.line_start(offset) : offset].strip(b" \t")

    def ends_line(self, offset: int) -> bool:
        """Whether only blanks and a comment follow the offset on its line."""
        return _BLANK_OR_COMMENT.match(self.data, offset) is not None

    def newline(self, offset: int) -> bytes:
        """Line ending of the line that holds the offset; that of the first line when it has none."""
        return _ending(self.data[: self.next_line(offset)]) or _ending(self.data[: self.next_line(0)]) or b"\n"


def read_source(source: bytes, file: str, fix: str) -> SourceText:
    """Decode Python source. Raises RegistryShapeError when its encoding is unknown or wrong, or does not give the file
    back byte for byte, or when lines end in a lone carriage return, which parsers disagree about."""
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
    """Offset of each line; a final newline starts no line of its own."""
    starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]
    return tuple(starts[:-1]) if len(starts) > 1 and starts[-1] == len(data) else tuple(starts)


def refusal(file: str, line: int, why: str, fix: str) -> RegistryShapeError:
    """The error for a shape that is not edited; `fix` already holds the line to paste."""
    return RegistryShapeError(why, where=f"{file}:{line}", fix=fix)


def string_literal(value: str, quote: str = '"', encoding: str = "utf-8") -> str:
    """A string literal with that quote; characters that cannot be printed or encoded are escaped.

    Example: string_literal('a"b') == '"a\\\\"b"'.
    """
    return quote + "".join(_escaped(character, quote, encoding) for character in value) + quote


def _escaped(character: str, quote: str, encoding: str) -> str:
    if character in {quote, "\\"}:
        return "\\" + character
    if not character.isprintable() or not _encodable(character, encoding):
        return character.encode("unicode_escape").decode("ascii")
    return character


def _encodable(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _ending(data: bytes) -> bytes:
    if data.endswith(b"\r\n"):
        return b"\r\n"
    return b"\n" if data.endswith(b"\n") else b""
