"""Environment variables of a repository against two releases."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Evidence, Finding, Severity, Verdict
from tooling.upgrade.surfaces.environment import (
    Mention,
    belongs,
    find_read,
    mentions_it,
    python_mentions,
    text_mentions,
)
from tooling.upgrade.surfaces.pair import What

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.upgrade.surfaces.environment import Read
    from tooling.upgrade.surfaces.pair import Pair
    from tooling.upgrade.surfaces.repository import SourceFile

_NAME = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def judge_environment(files: Sequence[SourceFile], pair: Pair) -> Iterator[Finding]:
    """Warnings for variables that the old release reads and the new one does not know."""
    gone = _gone(files, pair)
    if not gone:
        return
    for file in files:
        if not any(name.encode() in file.content for name in gone):
            continue
        for mention in _mentions(file):
            read = gone.get(mention.name)
            if read is not None and pair.is_reached(file, mention.line):
                version = pair.new.release.origin.version
                message = f"{pair.distribution} {version} does not read {mention.name}: it has no effect"
                what = What(Verdict.ENV_VAR, Severity.WARNING, mention.name, message)
                old = Evidence(read.file, read.line, read.source)
                yield pair.finding(file, (mention.line, mention.column, mention.line), what, old=old)


def _mentions(file: SourceFile) -> list[Mention]:
    if file.kind != "python":
        return text_mentions(file.content)
    return python_mentions(file.tree) if file.tree is not None else []


def _gone(files: Sequence[SourceFile], pair: Pair) -> dict[str, Read]:
    names = {hit.decode() for file in files for hit in set(_NAME.findall(file.content))}
    found = {}
    for name in sorted(name for name in names if belongs(name, pair.roots)):
        if mentions_it(pair.new, name):
            continue
        read = find_read(pair.old, name)
        if read is not None:
            found[name] = read
    return found
