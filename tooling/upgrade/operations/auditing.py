"""Audits of a repository for changes of version, kept so that the same question is answered by reading the files once.

The key is everything that an audit depends on: the repository's files, both releases, the policy, and the code of the
audit itself. Whoever edits one file of the repository asks another question.
"""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from packaging.version import InvalidVersion
from pydantic import TypeAdapter

from tooling.cli.errors import UsageError
from tooling.python.source import calm
from tooling.python.versions import version_or_none
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.errors import UpstreamError
from tooling.upgrade.findings import Audit
from tooling.upgrade.sources.cache import prune_kept, read_kept, write_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.verdicts.comparison import ReleasePair


_Read = TypeVar("_Read")
_LARGE: Final = 4_000_000
"""Bytes from which a file is identified by size and time; an audit reads nothing that large."""
_KEPT = TypeAdapter(tuple[tuple[Audit, ...], tuple[tuple[str, str], ...]])
"""Audits, and the name and version of each release that was asked beside old and new."""
_CODE: Final = ("python", "upgrade")
"""Packages of `tooling` whose code makes an audit."""


def audit_key(context: UpgradeContext, pairs: Sequence[ReleasePair], details: Iterable[str]) -> str:
    """Return what tells one question from another. details: what was asked besides the releases. A file of
    the repository that cannot be read counts as such. Raises ToolError for a release that is damaged."""
    tooling = Path(__file__).resolve().parents[2]
    code = sorted(path for package in _CODE for path in (tooling / package).rglob("*.py"))
    texts = [sys.version, sys.platform, repr(context.policy), *details]
    for release in (upstream.source for pair in pairs for upstream in (pair.old, pair.new)):
        texts += [release.digest(), repr(sorted(release.native())), repr(sorted(release.scripts().items()))]
    texts += [f"{path.name} {facts.st_size} {facts.st_mtime_ns}" for path in code if (facts := path.stat())]
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode("utf-8", "surrogatepass") + b"\0")
    for path in repository_files(context.root):
        total.update(path.encode("utf-8", "surrogatepass") + b"\0" + _content(context.root / path))
    return total.hexdigest()


def _content(path: Path) -> bytes:
    try:
        facts = path.lstat()
        if path.is_symlink() or facts.st_size > _LARGE:
            return f"{facts.st_size} {facts.st_mtime_ns}".encode()
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        return f"{error.strerror}".encode()


MOST_NAMED: Final = 3
"""Excluded files that a message names."""
MOST_BETWEEN: Final = 3
"""Cached releases between old and new that are asked what they announce: the newest, which announce most."""


@dataclass(frozen=True, slots=True)
class Move:
    """A distribution that goes from one version to another."""

    distribution: str
    old: str
    new: str
    why: str = "asked for"
    """Or what brought it along: "vllm 0.18.0 requires it"."""

    @property
    def is_downgrade(self) -> bool:
        """Whether the new version is the older one."""
        old, new = version_or_none(self.old), version_or_none(self.new)
        return old is not None and new is not None and new < old

    def __str__(self) -> str:
        """ "vllm 0.32.0 -> 0.18.0"."""
        return f"{self.distribution} {self.old} -> {self.new}"


@calm()
def audit_moves(
    context: UpgradeContext, moves: Sequence[Move], *, allowed: Mapping[str, SpecifierSet] | None = None
) -> tuple[Audit, ...]:
    """One audit for each move, in their order. allowed: versions that the manifests will admit, for guards that die.

    Raises UpstreamError when one of the releases cannot be read.
    """
    from tooling.upgrade.replacements.explain import Explainer
    from tooling.upgrade.verdicts import ReleasePair, audit, changed_members

    if not moves:
        return ()
    started = time.perf_counter()
    pairs = [
        ReleasePair(
            move.distribution,
            context.upstream(move.distribution, move.old),
            context.upstream(move.distribution, move.new),
        )
        for move in moves
    ]
    details = [
        text
        for move in moves
        for text in (
            str(move),
            *context.package(move.distribution).imports,
            *(f"{each.origin.version} {each.digest()}" for each in between(context, move, context.release)),
        )
    ]
    details += sorted(f"{name}{versions}" for name, versions in (allowed or {}).items())
    key = audit_key(context, pairs, details)
    path = context.cache / "audits" / f"{key}.json"
    opened = time.perf_counter()
    known = read_kept(path, _KEPT)
    if known is not None:
        audits, asked = known
        for name, version in asked:  # so that the report names them as it did
            with suppress(UpstreamError):
                context.upstream(name, version)
        return tuple(
            replace(each, seconds={**dict.fromkeys(each.seconds, 0.0), "sources": opened - started}) for each in audits
        )
    sources = set(context.origins())
    members = changed_members(pairs)
    index = context.usage(context.imports([move.distribution for move in moves]), members)
    indexed = time.perf_counter()
    context.report(f"judging {sum(len(file.uses) for file in index.files)} uses")
    moved = {move.distribution: move for move in moves}
    explain = Explainer(lambda name: between(context, moved[name], context.upstream))
    audits = audit(index, pairs, allowed=allowed, explain=explain)
    shared = {"sources": opened - started, "usage": indexed - opened}
    unread, files = context.unread(), context.looked_at()
    made = tuple(
        _with_interfaces(
            context,
            replace(
                each,
                files=files,
                excluded=tuple(
                    file.path
                    for file in index.excluded
                    if any(use.package in context.package(pair.distribution).imports for use in file.uses)
                ),
                seconds={**shared, **each.seconds},
                unreadable=(*each.unreadable, *unread),
            ),
            pair,
        )
        for each, pair in zip(audits, pairs, strict=True)
    )
    if audit_key(context, pairs, details) == key:  # else a file changed while others were read
        asked = tuple((each.distribution, each.version) for each in context.origins() if each not in sources)
        write_kept(path, _KEPT, (made, asked))
    prune_kept(context.cache)
    return made


def check_looked_at(context: UpgradeContext, audits: Sequence[Audit]) -> None:
    """Raise UsageError for an audit that looked at nothing: that it found nothing says nothing about the upgrade."""
    for audit in audits:
        if not audit.looked_at_nothing:
            continue
        if audit.files:
            some = ", ".join(audit.excluded[:MOST_NAMED]) + (", ..." if len(audit.excluded) > MOST_NAMED else "")
            raise UsageError(
                f"nothing was looked at: {audit.distribution} is used in {len(audit.excluded)} files, "
                f"all excluded: {some}",
                where="pyproject.toml: [tool.areal.upgrade] exclude",
                fix="take the files that you want audited out of `exclude`",
            )
        raise UsageError(
            f"nothing was looked at for {audit.distribution}: no Python, shell, Docker or YAML file is in scope",
            where=str(context.root),
            fix="name the repository with --repo, and check `exclude` in [tool.areal.upgrade] of its pyproject.toml",
        )


def _with_interfaces(context: UpgradeContext, audit: Audit, pair: ReleasePair) -> Audit:
    """Return the audit with what became of flags, routes and environment variables."""
    from tooling.upgrade.interfaces.judge import judge_interfaces

    started = time.perf_counter()
    context.report(f"{pair.distribution}: flags, routes and variables")
    imports = context.package(pair.distribution).imports
    rivals = [name for package in context.policy.packages for name in package.imports if name not in imports]
    judged = [
        judge_interfaces(
            context.root,
            pair.old.source,
            pair.new.source,
            name,
            exclude=context.policy.exclude,
            cache=context.cache,
            rivals=rivals,
            home=context.home,
        )
        for name in imports
    ]
    uses = {use for one in judged for use in one.uses}
    # What several import names lead to is found once
    found = {(each.path, each.line, each.kind, each.symbol): each for one in reversed(judged) for each in one.findings}
    findings = sorted(
        (*audit.findings, *found.values()), key=lambda each: (each.path, each.line, each.column, each.kind)
    )
    seconds = {**audit.seconds, "interfaces": time.perf_counter() - started}
    return replace(
        audit,
        findings=tuple(findings),
        seconds=seconds,
        used_in=tuple(sorted({*audit.used_in, *(use.path for use in uses)})),
        interfaces=tuple(sorted(uses)),
        unfollowed=tuple(sorted({each for one in judged for each in one.unfollowed})),
    )


def between(context: UpgradeContext, move: Move, read: Callable[[str, str], _Read]) -> tuple[_Read, ...]:
    """Return the cached releases between two versions that are worth asking, ascending. read: `context.release`, or
    `context.upstream`. One that cannot be read is left out: it is an aside, nobody asked for it."""
    found = []
    with suppress(InvalidVersion):
        for version in context.catalogue.cached_between(move.distribution, move.old, move.new)[-MOST_BETWEEN:]:
            with suppress(UpstreamError):
                found.append(read(move.distribution, version))
    return tuple(found)
