"""Sentences about what does not exist: nothing in the code contradicts them when it comes to exist, so they go stale.

Found is what says that a part of this repository is missing: "there is no", "is not supported", "has no engine",
"without a backend", "one process on one device". Rules about what must not happen ("no rank leaves early", "a value is
never recomputed") are no such sentences. Code spans and blocks are left out: they may quote a message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tooling.harness.sources import PageFinding

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARTS: Final = r"(?:engine|backend|launcher|scheduler|server|implementation|support|integration)s?"
_SAYING: Final = re.compile(
    "|".join(
        (
            r"\bthere(?: is|'s| are) (?:no|not|nothing|neither)\b",
            r"\b(?:is|are) (?:not|neither) (?:yet )?(?:implemented|supported|available|provided|here|built)\b",
            r"\b(?:does|do) not (?:yet )?(?:exist|support|provide|implement|offer)\b",
            r"\bnot yet\b",
            rf"\b(?:has|have|with) no (?:[\w-]+ ){{0,3}}(?:{_PARTS}|commands?|options?|settings?)\b",
            rf"\bno (?:(?!longer\b)[\w-]+ ){{1,3}}{_PARTS}\b",
            rf"\bwithout an? (?:[\w-]+ ){{0,2}}{_PARTS}\b",
            r"\bdo not invent\b",
            r"\bnothing (?:here |of ours )?(?:imports|uses|implements|supports|provides)\b",
            r"\bone process\b[^.;:]{0,60}\bon one (?:device|machine)\b",
        )
    ),
    re.IGNORECASE,
)
_CODE: Final = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)|(?P<ticks>`+)[^`].*?(?<!`)(?P=ticks)(?!`)", re.DOTALL | re.M
)


def absence_findings(path: str, text: str, first_line: int) -> Iterator[PageFinding]:
    """Find such sentences in what a page's author wrote; `first_line` is that of the text in its file."""
    prose = _CODE.sub(lambda found: re.sub(r"[^\n]", "`", found[0]), text)
    for found in _SAYING.finditer(re.sub(r"\n(?=[^\n])", " ", prose)):
        line = first_line + text.count("\n", 0, found.start())
        message = f"{found[0]!r} says what does not exist, which no check can keep true"
        yield PageFinding(
            path, line, "absence", message, "say what exists; the block below `owns` lists what is refused"
        )
