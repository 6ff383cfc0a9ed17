"""What a page and a section are, once read."""

from __future__ import annotations

from dataclasses import dataclass, field


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
class Page:
    """One file."""

    path: str
    sections: tuple[Section, ...]

    def find(self, digest: str) -> Section | None:
        """The first section of this digest."""
        return next((section for section in self.sections if section.digest == digest), None)
