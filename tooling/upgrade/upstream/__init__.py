"""A release as symbols, found on demand and never loaded whole. Three answers everywhere: found, absent, open.

- store, definitions: files by dotted path, kept facts; symbols and the way back to their text
- runtime, made_names, modules, values: names of modules, however they come about; `tooling.python` interprets them
- members, fields: classes, their order, attributes and fields
- decorators, signatures, keywords: how things are called
- annotations, expressions, inference, follow: values of expressions, of the release and of its clients
- member_names: questions to the text of a whole release
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
