"""What a run of Markdown tokens says, as text that stays the same when lines are wrapped otherwise.

Left out are spaces that mean nothing, the characters chosen for bullets and emphasis, and comments. Between two Chinese
characters a line break is no space.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from markdown_it.token import Token

COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_SPACES: Final = re.compile(r"\s+")
_WIDE: Final = "\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef"
_BETWEEN_WIDE: Final = re.compile(rf"(?<=[{_WIDE}]) (?=[{_WIDE}])")
_LENGTH: Final = 16


def digest(tokens: Iterable[Token], front: str = "") -> str:
    """A short hash of what the tokens say; `front`: of front matter, its lines."""
    said = "\n".join([line.rstrip() for line in front.splitlines()] + list(_lines(tokens)))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:_LENGTH]


def squeezed(text: str) -> str:
    """The text with single spaces, and none between Chinese characters."""
    return _BETWEEN_WIDE.sub("", _SPACES.sub(" ", text).strip())


def _lines(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "inline":
            yield f"text {squeezed(''.join(_inline(token.children or [])))}"
        elif token.type in {"fence", "code_block"}:
            yield f"code {token.info.strip()}\n{token.content.rstrip()}"
        elif token.type == "html_block":
            left = squeezed(COMMENT.sub("", token.content))
            if left:
                yield f"html {left}"
        elif token.type not in {"paragraph_open", "paragraph_close"}:
            start = token.attrGet("start")
            yield f"{token.type} {token.tag}" + (f" {start}" if start is not None else "")


def _inline(children: Sequence[Token]) -> Iterator[str]:
    for child in children:
        if child.type == "text":
            yield child.content
        elif child.type == "softbreak":
            yield " "
        elif child.type == "code_inline":
            yield f"`{child.content}`"
        elif child.type == "link_open":
            yield f"[{child.attrGet('href')} {child.attrGet('title') or ''}|"
        elif child.type == "image":
            yield f"![{child.attrGet('src')} {child.attrGet('title') or ''}|{child.content}]"
        elif child.type == "html_inline":
            yield COMMENT.sub("", child.content)
        else:
            yield f"<{child.type}>"
