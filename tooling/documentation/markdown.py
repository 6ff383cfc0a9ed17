"""Takes a Markdown page apart into sections, each with the facts that a translation has to keep.

    read_page("docs/a.md", text).sections[0].facts.links

markdown-it reads the page; a section ends where the next heading begins. The digest of a section does not change with
wrapping, trailing blanks or the style of emphasis.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One block of code."""

    language: str
    content: str
    line: int
    """1-based, in the file."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link or image."""

    target: str
    line: int


@dataclass(frozen=True, slots=True)
class Prose:
    """One paragraph, heading, or cell of a table."""

    text: str
    """Words only: code spans and targets of links are left out."""
    line: int


@dataclass(frozen=True, slots=True)
class Allowed:
    """A difference that is meant: `<!-- areal-docs allow numbers: another unit -->`."""

    kinds: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not depend on the language a section is written in."""

    code: tuple[CodeBlock, ...] = ()
    spans: tuple[str, ...] = ()
    """Inline code, in order."""
    links: tuple[Link, ...] = ()
    images: tuple[Link, ...] = ()
    tables: tuple[tuple[int, int], ...] = ()
    """Rows (with the head) and columns of each."""
    items: int = 0
    """Of lists."""
    prose: tuple[Prose, ...] = ()
    allowed: tuple[Allowed, ...] = ()

    @property
    def words(self) -> str:
        """All prose, one piece per line."""
        return "\n".join(piece.text for piece in self.prose)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what follows it up to the next heading, whatever its level."""

    title: str
    """Without markup; "" for what stands before the first heading."""
    level: int
    """1 to 6; 0 for what stands before the first heading, -1 for front matter."""
    slug: str
    """The anchor that the heading gets: "the-staleness-bound"."""
    line: int
    """1-based line of the file it begins on."""
    end: int
    """Its last line."""
    text: str
    """As written, with its heading."""
    digest: str
    """Of what it says."""
    facts: Facts = field(default_factory=Facts)

    @property
    def name(self) -> str:
        """For people: "## Versions"."""
        if self.level < 0:
            return "(front matter)"
        return f"{'#' * self.level} {self.title}" if self.level else "(before the first heading)"


@dataclass(frozen=True, slots=True)
class MarkdownPage:
    """One file."""

    path: str
    sections: tuple[Section, ...]

    def find(self, digest: str) -> Section | None:
        """Return the first section of this digest."""
        return next((section for section in self.sections if section.digest == digest), None)


@functools.cache
def parser() -> MarkdownIt:
    """Made once."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_SPACES: Final = re.compile(r"\s+")
_WIDE: Final = "\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef"
_BETWEEN_WIDE: Final = re.compile(rf"(?<=[{_WIDE}]) (?=[{_WIDE}])")
_LENGTH: Final = 16


def digest(tokens: Iterable[Token], front: str = "") -> str:
    """Return a short hash of what the tokens say; `front`: of front matter, its lines."""
    said = "\n".join([line.rstrip() for line in front.splitlines()] + list(_lines(tokens)))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:_LENGTH]


def squeezed(text: str) -> str:
    """Return the text with single spaces, and none between Chinese characters."""
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
    """Collect the facts of one section; `offset`: lines of the file before the tokens' first."""
    found = _Collector()
    found.read(tokens, offset)
    return found.facts()


def text_of(inline: Token) -> str:
    """Return the words of a heading, code spans included."""
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
                language = (token.info.split() or [""])[0]
                directive = _DIRECTIVE.fullmatch(language)
                if directive and directive["name"] in _PROSE_DIRECTIVES:
                    self.read(parser().parse(token.content), line)
                else:
                    self.code.append(CodeBlock(language, token.content, line))
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
        """Read inline code; behind "{ref}" of MyST it is a link with words, "text <target>", or a target alone."""
        role = _ROLE.search(words[-1]) if words else None
        if role is None:
            self.spans.append(content)
            words.append(" ")
            return
        words[-1] = words[-1][: role.start()]
        target = _ROLE_TARGET.search(content)
        self.links.append(Link(f"{role['name']}:{target['target'] if target else content}", line))
        words.append(content[: target.start()] if target else " ")

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
    """Count rows and columns of the table that the tokens begin with."""
    rows = columns = 0
    for token in tokens:
        rows += token.type == "tr_open"
        columns += token.type == "th_open"
        if token.type == "table_close":
            break
    return rows, columns


_FRONT: Final = re.compile(r"\A---[ \t]*\n(?P<inside>.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_LEVEL: Final = -1


def read_page(path: str, text: str) -> MarkdownPage:
    """Read the page's sections. Every text is Markdown, so nothing is raised."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    front = _FRONT.match(text)
    head, body = (front[0], text[front.end() :]) if front else ("", text)
    offset = head.count("\n")
    tokens = parser().parse(body)
    lines = body.split("\n")
    sections, taken = list[Section](), dict[str, int]()
    if head:
        said = digest([], front["inside"] or "") if front else ""
        sections.append(Section("", _FRONT_LEVEL, "", 1, offset, head, said))
    starts = [number for number, token in enumerate(tokens) if token.type == "heading_open" and token.level == 0]
    bounds = [0, *starts, len(tokens)]
    for begin, end in itertools.pairwise(bounds):
        part = tokens[begin:end]
        heading = part[0] if part and begin in starts else None
        first = heading.map[0] if heading is not None and heading.map else 0
        after = tokens[end].map if end < len(tokens) else None
        last = after[0] if after else len(lines)
        if heading is None and not part:
            continue
        sections.append(_section(part, heading, lines[first:last], first + offset, taken))
    return MarkdownPage(path, tuple(sections))


def _section(part: list[Token], heading: Token | None, lines: list[str], first: int, taken: dict[str, int]) -> Section:
    text = "\n".join(lines).rstrip() + "\n"
    title = text_of(part[1]) if heading is not None else ""
    level = int(heading.tag[1:]) if heading is not None else 0
    end = first + max(1, text.count("\n"))
    offset = first - (heading.map[0] if heading is not None and heading.map else 0)
    return Section(title, level, _slug(title, taken), first + 1, end, text, digest(part), facts_of(part, offset))


def _slug(title: str, taken: dict[str, int]) -> str:
    """Return the anchor of a heading as GitHub makes it; the second one of a name gets "-1"."""
    if not title:
        return ""
    kept = "".join(letter for letter in title.strip().lower() if letter.isalnum() or letter in " -_")
    slug = kept.replace(" ", "-")
    again = taken.get(slug, 0)
    taken[slug] = again + 1
    return f"{slug}-{again}" if again else slug
