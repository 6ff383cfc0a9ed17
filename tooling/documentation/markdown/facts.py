"""What a section holds that does not depend on its language: code, links, tables, lists; and its prose, piece by piece.

Directives of MyST (a block whose language is in braces, "{note}") hold prose, not code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tooling.documentation.markdown.normal import COMMENT, squeezed
from tooling.documentation.markdown.parser import parser
from tooling.documentation.markdown.records import Allowed, CodeBlock, Facts, Link, Prose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token

_ALLOW: Final = re.compile(r"areal-docs allow (?P<kinds>[\w, -]+?):\s*(?P<reason>\S.*?)\s*-->", re.DOTALL)
_DIRECTIVE: Final = re.compile(r"\{(?P<name>[\w:-]+)\}")
_PROSE_DIRECTIVES: Final = frozenset(
    [
        "admonition",
        "attention",
        "caution",
        "danger",
        "dropdown",
        "error",
        "figure",
        "hint",
        "important",
        "note",
        "seealso",
        "tip",
        "warning",
    ]
)
_MATH: Final = re.compile(r"\$\$.*?\$\$|(?<![\\$])\$(?=\S)[^$]*?(?<=\S)\$(?!\d)|\\\[.*?\\\]|\\\(.*?\\\)", re.DOTALL)
_ROLE: Final = re.compile(r"\{(?P<name>[\w:-]+)\}$")
_ROLE_TARGET: Final = re.compile(r"<(?P<target>[^<>]+)>$")
_BARE_URL: Final = re.compile(
    r"https?://[^\s<>()\"'\u3000-\u303f\uff00-\uffef]+[^\s<>()\"'.,;:!?\u3000-\u303f\uff00-\uffef]"
)


def facts_of(tokens: Sequence[Token], offset: int) -> Facts:
    """Of one section; `offset`: lines of the file before the tokens' first."""
    found = _Collector()
    found.read(tokens, offset)
    return found.facts()


def text_of(inline: Token) -> str:
    """The words of a heading, code spans included."""
    kept = [
        child.content if child.type in {"text", "code_inline"} else " "
        for child in inline.children or []
        if child.type in {"text", "code_inline", "softbreak", "hardbreak"}
    ]
    return squeezed("".join(kept))


@dataclass(slots=True)
class _Collector:
    code: list[CodeBlock] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    images: list[Link] = field(default_factory=list)
    tables: list[tuple[int, int]] = field(default_factory=list)
    items: int = 0
    prose: list[Prose] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)

    def facts(self) -> Facts:
        return Facts(
            tuple(self.code),
            tuple(self.spans),
            tuple(self.links),
            tuple(self.images),
            tuple(self.tables),
            self.items,
            tuple(self.prose),
            tuple(self.allowed),
        )

    def read(self, tokens: Sequence[Token], offset: int) -> None:
        line = offset + 1
        for number, token in enumerate(tokens):
            line = token.map[0] + offset + 1 if token.map else line
            if token.type == "inline":
                self._inline(token.children or [], line)
            elif token.type in {"fence", "code_block"}:
                self._block(token, line)
            elif token.type == "list_item_open":
                self.items += 1
            elif token.type == "table_open":
                self.tables.append(_shape(tokens[number:]))
            elif token.type == "html_block":
                self._comments(token.content)
                self._words(re.sub(r"<[^<>]*>", " ", COMMENT.sub("", token.content)), line)

    def _inline(self, children: Sequence[Token], line: int) -> None:
        words = []
        for child in children:
            if child.type == "text":
                words.append(child.content)
            elif child.type in {"softbreak", "hardbreak"}:
                words.append(" ")
            elif child.type == "code_inline":
                self._span(child.content, line, words)
            elif child.type == "link_open":
                self.links.append(Link(str(child.attrGet("href") or ""), line))
            elif child.type == "image":
                self.images.append(Link(str(child.attrGet("src") or ""), line))
            elif child.type == "html_inline":
                self._comments(child.content)
        self._words("".join(words), line)

    def _span(self, content: str, line: int, words: list[str]) -> None:
        """Inline code; behind "{ref}" of MyST it is a link with words, "text <target>", or a target alone."""
        role = _ROLE.search(words[-1]) if words else None
        if role is None:
            self.spans.append(content)
            words.append(" ")
            return
        words[-1] = words[-1][: role.start()]
        target = _ROLE_TARGET.search(content)
        self.links.append(Link(f"{role['name']}:{target['target'] if target else content}", line))
        words.append(content[: target.start()] if target else " ")

    def _block(self, token: Token, line: int) -> None:
        language = (token.info.split() or [""])[0]
        directive = _DIRECTIVE.fullmatch(language)
        if directive and directive["name"] in _PROSE_DIRECTIVES:
            self.read(parser().parse(token.content), line)
            return
        self.code.append(CodeBlock(language, token.content, line))

    def _words(self, text: str, line: int) -> None:
        self.links += [Link(url, line) for url in _BARE_URL.findall(text)]
        text = squeezed(_MATH.sub(" ", _BARE_URL.sub(" ", text)))
        if text:
            self.prose.append(Prose(text, line))

    def _comments(self, html: str) -> None:
        for found in _ALLOW.finditer(html):
            kinds = frozenset(kind.strip() for kind in found["kinds"].split(",") if kind.strip())
            self.allowed.append(Allowed(kinds, squeezed(found["reason"])))


def _shape(tokens: Sequence[Token]) -> tuple[int, int]:
    """Rows and columns of the table that the tokens begin with."""
    rows = columns = 0
    for token in tokens:
        rows += token.type == "tr_open"
        columns += token.type == "th_open"
        if token.type == "table_close":
            break
    return rows, columns
