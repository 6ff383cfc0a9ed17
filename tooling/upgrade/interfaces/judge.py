"""Flags, routes, request fields and environment variables that a repository uses, judged against two releases.

    judge_interfaces(Path("."), old, new, "vllm").findings

A finding needs that the old release has it and the new one lacks it. Breaking: a flag that the new parser refuses, a
route that answers 404, a field that a strict model refuses. Warning: an abbreviation, a parser that ignores what it
does not know, places that make flags nobody could read off, fields that are silently ignored, and environment
variables, which always fail silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.upgrade.interfaces.environment import judge_environment
from tooling.upgrade.interfaces.flags import judge_flags, judge_scripts
from tooling.upgrade.interfaces.modules import ReleaseModules
from tooling.upgrade.interfaces.pair import InterfacePair
from tooling.upgrade.interfaces.repository import source_files
from tooling.upgrade.interfaces.requests import judge_routes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.upgrade.findings import AuditFinding, InterfaceUse, Unfollowed
    from tooling.upgrade.releases import Release


@dataclass(frozen=True, slots=True)
class JudgedInterfaces:
    """What was found, and what was looked at."""

    findings: tuple[AuditFinding, ...]
    uses: tuple[InterfaceUse, ...]
    unfollowed: tuple[Unfollowed, ...]


def judge_interfaces(
    repository: Path,
    old: Release,
    new: Release,
    package: str,
    *,
    scope: Sequence[str] = (),
    exclude: Sequence[str] = (),
    cache: Path | None = None,
    rivals: Sequence[str] = (),
    home: Path | None = None,
) -> JudgedInterfaces:
    """Findings sorted by place, each cause once, and what was looked at. package: import name, for words like "vllm" in
    names of variables and files. scope, exclude: folders or files to look at, and to leave out. cache: folder for what
    is found out about releases and the repository. rivals: import names of other packages that the repository uses.
    home: what it is a copy of."""
    files = source_files(repository, scope=scope, exclude=exclude)
    where = (home or repository).resolve()
    pair = InterfacePair(ReleaseModules(old), ReleaseModules(new), package, cache, tuple(rivals), where)
    judges = (judge_flags, judge_scripts, judge_routes, judge_environment)
    findings = [finding for judge in judges for finding in judge(files, pair)]
    pair.files.save()
    unique = {(each.path, each.line, each.kind, each.symbol): each for each in findings}
    ordered = sorted(unique.values(), key=lambda each: (each.path, each.line, each.column, each.symbol))
    return JudgedInterfaces(tuple(ordered), tuple(sorted(pair.uses)), tuple(sorted(pair.unfollowed)))
