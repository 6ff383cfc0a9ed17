"""The usage index of a repository: which files matter, their facts, and the uses that linking finds in them."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.python.access_paths import is_distinctive
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.usage.checkout import Checkout
from tooling.upgrade.usage.config_files import config_uses
from tooling.upgrade.usage.facts import FactsCache
from tooling.upgrade.usage.link.emit import Emitter
from tooling.upgrade.usage.link.reach import affected_files, importers
from tooling.upgrade.usage.link.resolve import Resolver
from tooling.upgrade.usage.link.store import FactsStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tooling.upgrade.uses import FileUses, Use


_ROUNDS = 3
"""How many files away from where it was made a value is followed through calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageIndex:
    """What a repository does with some packages."""

    files: tuple[FileUses, ...]
    """Those with uses, guards or a problem, sorted by path."""
    looked_at: int
    """Python files in scope."""
    excluded: tuple[FileUses, ...] = ()
    """Those of `files` that the repository's policy excludes; they are not among `files`."""
    scanned: int
    """Files that were parsed in this run; the cache had the others."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase: "list", "scan", "link", and "total"; processor time."""

    def uses(self) -> Iterator[Use]:
        """All uses, by file and place."""
        for file in self.files:
            yield from file.uses


def index_repository(
    root: Path,
    packages: Sequence[str],
    *,
    scope: Sequence[str] = (),
    cache: Path | None = None,
    members: frozenset[str] = frozenset(),
) -> UsageIndex:
    """Everything a repository does with packages, found by reading its text.

    packages: import names, dotted ones for parts of a namespace ("megatron.core"). scope: folders or files to report
    on; all Python files when empty. cache: a folder for facts of files; without one nothing is kept. members: names of
    attributes that are worth a use even where nothing says whose they are.
    """
    enabled = gc.isenabled()
    gc.disable()  # hundreds of thousands of small tuples are kept anyhow: collections only cost
    try:
        return _indexed(Checkout(root, scope), tuple(dict.fromkeys(packages)), FactsCache(cache), members)
    finally:
        if enabled:
            gc.enable()


def _indexed(checkout: Checkout, packages: tuple[str, ...], cache: FactsCache, members: frozenset[str]) -> UsageIndex:
    started = time.process_time()
    in_scope = [path for path in checkout.paths if checkout.in_scope(path)]
    mentioning = checkout.mentioning(packages)
    listed = time.process_time()
    store = FactsStore(checkout, cache)
    link = Resolver(store, packages)
    edges = importers(store)
    wanted = affected_files(link, store, mentioning, edges)
    telling = frozenset(filter(is_distinctive, members if wanted else ()))
    beside = {path for path in checkout.paths if checkout.uses_attribute(path, telling)}  # whoever they belong to
    for _ in range(_ROUNDS):
        link.look_in(wanted | beside)
        fed = link.flows.fed_files(wanted)
        if not fed:
            break
        wanted |= fed
    emitter = Emitter(link, store, edges, members)
    found = [
        emitter.file(path)
        for path in sorted(wanted | beside)
        if checkout.in_scope(path) and (path in wanted or emitter.has_untyped(path))
    ]
    configured = [path for path in repository_files(checkout.root) if checkout.in_scope(path)] if packages else []
    found += config_uses(checkout.root, configured, link.package_of)
    found.sort(key=lambda file: file.path)
    done = time.process_time()
    seconds = {
        "list": listed - started,
        "scan": store.scan_seconds,
        "link": done - listed - store.scan_seconds,
        "total": done - started,
    }
    return UsageIndex(
        files=tuple(file for file in found if file.uses or file.guards or file.extensions or file.problem),
        looked_at=len(in_scope),
        scanned=store.scanned,
        seconds=seconds,
    )
