"""Audits of a repository for changes of version."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.upgrade.findings import Audit
    from tooling.upgrade.operations.context import Context


@dataclass(frozen=True, slots=True)
class Move:
    """A distribution that goes from one version to another."""

    distribution: str
    old: str
    new: str
    why: str = "asked for"
    """Or what brought it along: "vllm 0.18.0 requires it"."""


def audit_moves(
    context: Context, moves: Sequence[Move], *, allowed: Mapping[str, SpecifierSet] | None = None
) -> tuple[Audit, ...]:
    """One audit for each move, in their order. allowed: versions that the manifests will admit, for guards that die.

    Raises UpstreamError when one of the releases cannot be had.
    """
    from tooling.upgrade.replacements.explain import Explainer
    from tooling.upgrade.verdicts import Comparison, audit

    if not moves:
        return ()
    started = time.perf_counter()
    pairs = [
        Comparison(
            move.distribution,
            context.upstream(move.distribution, move.old),
            context.upstream(move.distribution, move.new),
        )
        for move in moves
    ]
    opened = time.perf_counter()
    index = context.usage(context.imports([move.distribution for move in moves]))
    indexed = time.perf_counter()
    context.report(f"judging {sum(len(file.uses) for file in index.files)} uses")
    audits = audit(index, pairs, allowed=allowed, explain=Explainer())
    shared = {"sources": opened - started, "usage": indexed - opened}
    return tuple(replace(each, seconds={**shared, **each.seconds}) for each in audits)
