r"""Finds the answer a completion puts into \boxed{...}. Linear in the text, whatever a model writes."""

from __future__ import annotations

import re
from typing import Final

_MARKS: Final = ("\\boxed{", "\\fbox{")
_BRACES: Final = re.compile("[{}]")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{...} or \fbox{...}; braces inside may nest.

    None when there is no box. An opened box that is never closed has no content: "".
    """
    start = max(text.rfind(mark) for mark in _MARKS)
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for brace in _BRACES.finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.start()]
    return ""
