"""Making declarations out of strings that stand somewhere in a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.records import Declaration, Kind, Style
from tooling.upgrade.declarations.requirement_text import normalised, read_requirement

if TYPE_CHECKING:
    from collections.abc import Iterable

_TAG = re.compile(r"@v?(?P<version>\d+(?:\.\d+)+(?:[a-z.+-]*\d+)*)(?=$|[#\s&])")


def required(
    path: str,
    line: int,
    offset: int,
    text: str,
    kind: Kind,
    *,
    section: str = "",
    group: str = "",
    hashes: Iterable[tuple[int, int]] = (),
) -> Declaration | None:
    """The declaration of a requirement string that begins at `offset` of the file; None where it is none."""
    parts = read_requirement(text)
    if parts is None:
        return None
    style, start, end, specifier = Style.PEP508, parts.start, parts.end, parts.specifier
    if parts.url:
        kind, style = Kind.SOURCE, Style.OPAQUE
        tag = _TAG.search(text)
        start, end = text.index(parts.url), text.index(parts.url) + len(parts.url)
        if tag is not None and parts.url.startswith("git+"):
            style, (start, end) = Style.PLAIN, tag.span("version")
        specifier = text[start:end]
    return Declaration(
        path=path,
        line=line,
        start=offset + start,
        end=offset + end,
        distribution=parts.name,
        specifier=specifier,
        kind=kind,
        style=style,
        section=section,
        group=group,
        extras=parts.extras,
        marker=parts.marker,
        text=text.strip(),
        hashes=tuple(hashes),
    )


def versioned(
    path: str, line: int, start: int, version: str, name: str, kind: Kind, *, style: Style, section: str, text: str
) -> Declaration:
    """The declaration of a bare version that begins at `start` of the file."""
    return Declaration(
        path=path,
        line=line,
        start=start,
        end=start + len(version),
        distribution=normalised(name),
        specifier=version,
        kind=kind,
        style=style,
        section=section,
        text=text.strip(),
    )
