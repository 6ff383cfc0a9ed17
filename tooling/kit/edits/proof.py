"""Prove that an edit did what it was meant to do and nothing else, before its bytes go anywhere.

The syntax tree of the whole module after the edit must equal the tree before it, changed in exactly the intended way;
and every comment must still stand behind the same code. Uses the standard library's parser, not the one that located
the place, so that a mistake of one is found by the other.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import TYPE_CHECKING, NamedTuple

from tooling.kit.edits.bindings import parse_python
from tooling.kit.edits.text import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.kit.edits.text import SourceText

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
    added: tuple[int, int] = (0, 0),
) -> None:
    """Raise RegistryShapeError unless `after` is `before` with `change` done to its tree.

    removed: span of `before` whose comments go; added: span of `after` whose comments are new (import lines copy one);
    line: of the table, for the message.
    """
    try:
        expected, actual = parse_python(before.text), parse_python(after.text)
        change(expected)
        kept = [mark[1:] for mark in comments(before) if not removed[0] <= mark.offset < removed[1]]
        found = [mark[1:] for mark in comments(after) if not added[0] <= mark.offset < added[1]]
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise refusal(before.file, line, f"the edit could not be proved: {error}", fix) from error
    if not same_tree(expected, actual):
        raise refusal(before.file, line, "the edit could not be proved: it would change more than the entry", fix)
    if kept != found:
        raise refusal(before.file, line, "the edit could not be proved: a comment would move or get lost", fix)


def same_tree(left: ast.AST, right: ast.AST) -> bool:
    """Whether two trees are equal but for positions. Not recursive: a chain of a thousand branches is a deep tree."""
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
    """Every comment in order. Raises tokenize.TokenError or SyntaxError where the text is no Python."""
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
