"""A release as symbols, found on demand and never loaded whole. Three answers everywhere: found, absent, open.

- parsing, tables: source text to trees; the records that are kept of a module
- scan: a file's names: bindings, star imports, `__all__`, class bodies
- functions, keyword_flow, attributes: what a definition's own text says
- deprecations: texts that announce that something goes
- store, definitions: files by dotted path, kept facts; symbols and the way back to their text
- terms, constants, execute: a small interpreter that runs nothing, for `__getattr__` tables, lazy structures, defaults
- runtime, made_names, modules, values: names of modules, however they come about
- members, fields: classes, their order, attributes and fields
- decorators, signatures, keywords: how things are called
- annotations, containers, expressions, inference, follow: values of expressions, of the release and of its clients
- texts, member_names: questions to the text of a whole release
- model, release: the parts see each other only through `model`; `release` puts them together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.upstream.release import UpstreamRelease

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.upgrade.releases import Release

__all__ = ["UpstreamRelease", "open_upstream"]


def open_upstream(release: Release, *, cache: Path | None = None) -> UpstreamRelease:
    """A release as symbols. `cache`: folder for facts that are kept between runs; None keeps nothing.

    Facts are written when the object goes, or by its `save`.
    """
    return UpstreamRelease(release, cache)
