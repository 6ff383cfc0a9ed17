"""Definitions compared by their text: tokens, similarity, and lines in which one name took another's place."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.upgrade.symbols import Symbol, Upstream

SIMILAR = 0.8
"""Share of equal tokens from which two definitions are one that was edited: of candidates read by hand all at or above
it were right, below it about half."""
_LEAST_TOKENS = 16
"""Shorter definitions look alike by chance."""
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")
_DOCSTRING = re.compile(r'^\s*[rRuU]?("""|\'\'\')(?:\\.|(?!\1).)*\1', re.DOTALL)
_MOST_LINES = 4000


def source_of(upstream: Upstream, symbol: Symbol) -> str:
    """The text of a definition; "" where it cannot be had."""
    if not symbol.file or not symbol.line:
        return ""
    try:
        lines = upstream.release.read(symbol.file).decode("utf-8", "replace").splitlines()
    except KeyError:
        return ""
    end = symbol.end_line or symbol.line
    return "\n".join(lines[symbol.line - 1 : min(end, symbol.line + _MOST_LINES)])


def tokens(source: str, name: str) -> Counter[str]:
    """The tokens of a definition as a multiset, without docstring, comments and its own name."""
    head, colon, body = source.partition(":\n")
    text = head + colon + _DOCSTRING.sub("", body, count=1)
    text = re.sub(r"#[^\n]*", "", text)
    return Counter(token for token in _TOKEN.findall(text) if token != name)


def similarity(left: Counter[str], right: Counter[str]) -> float:
    """Share of tokens that two multisets have in common; 0 for small ones."""
    sizes = left.total(), right.total()
    if min(sizes) < _LEAST_TOKENS:
        return 0.0
    return 2 * (left & right).total() / sum(sizes)


def substitutions(old: str, new: str, name: str, other: str) -> int:
    """How many lines of the old text, with one name put in the other's place, are lines of the new text that were not
    there before. The line that defines the name is none of them: many things take the same arguments."""
    before = {line.strip() for line in old.splitlines()}
    after = {line.strip() for line in new.splitlines()} - before
    word = re.compile(rf"\b{re.escape(name)}\b")
    defines = re.compile(rf"(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b")
    changed = {word.sub(other, line) for line in before if word.search(line) and not defines.match(line)}
    return len(changed & after)
