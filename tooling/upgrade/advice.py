"""Read what a package's texts tell to use instead: deprecations, warnings, messages of what only raises."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.source import alone, parsed, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)*"
"""Dotted, or as entry points are written: "up.x:Moved"."""
_QUOTE = r"[`'\"]{0,3}"
_ADVICE = re.compile(
    r"\b(?:use|using|prefer|switch(?:ing)? to|migrate to|renamed(?: to| as)?|moved (?:to|into)|in favou?r of|"
    r"(?:been )?replaced (?:by|with)|available (?:as|in|from|under)|import(?:ed)?(?: it)? (?:from|via)|pass|set|call)"
    r"\s+"
    r"(?:(?:it|them)\s+(?:to|as|from|by|with)\s+)?(?:the\s+)?(?:new\s+|following\s+)?"
    r"(?:(?:class|function|method|module|attribute|argument|parameter|keyword|field|property|option)\s+)?"
    rf"(?P<quote>{_QUOTE})(?P<name>{_NAME})(?:\([^)]*\))?(?P=quote)"
    rf"(?:(?:,|,? or|/)\s+{_QUOTE}(?P<other>{_NAME}))?",
    re.IGNORECASE,
)
_IMPORT = re.compile(rf"\bfrom\s+(?P<module>{_NAME})\s+import\s+(?P<name>[A-Za-z_]\w*)")
_ENDS = re.compile(
    r"deprecat|obsolete|no longer|legacy|instead|(?:re)?moved|renamed|replaced|favou?r|will be|superseded",
    re.IGNORECASE,
)
_LONGEST = 4000


def advised(text: str) -> Iterator[str]:
    """Names that a text tells to use, in order, as it writes them: "use `model.dtype` instead" gives "model.dtype".

    Any word after "use" is one: whoever asks checks that it exists."""
    text = " ".join(text[:_LONGEST].split())
    for match in _IMPORT.finditer(text):
        yield f"{match['module']}.{match['name']}"
    for match in _ADVICE.finditer(text):
        yield from (name.replace(":", ".") for name in (match["name"], match["other"]) if name)


def texts_about(source: str, name: str) -> Iterator[str]:
    """Texts in a piece of code that mention a name and speak of its end; adjacent strings are one, of f-strings only
    the constant parts count. Nothing for code that cannot be parsed."""
    tree = parsed(alone(source))
    word = re.compile(rf"\b{re.escape(name)}\b")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                text = text_of(argument)
                if word.search(text) and _ENDS.search(text) and _ADVICE.search(" ".join(text.split())):
                    yield text
