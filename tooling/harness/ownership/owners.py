"""Which expert a file belongs to: the one whose glob says most about the file.

owners = Owners([("models", "app/models/**"), ("plans", "app/models/*/plan.py")])
owners.of("app/models/x/plan.py")       # ("plans",)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.harness.globs import matches, precision
from tooling.harness.sources import PageFinding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tooling.harness.sources import Expert


class Owners:
    """Globs of experts, the most telling first."""

    def __init__(self, globs: Iterable[tuple[str, str]]) -> None:
        """globs: pairs of an expert's name and one of its globs."""
        self._ranked = sorted(((precision(glob), glob, name) for name, glob in globs), reverse=True)

    def of(self, path: str) -> tuple[str, ...]:
        """Return the owners of a file, sorted: one, none, or those whose globs say the same much about it."""
        best: tuple[int, int] | None = None
        found = set[str]()
        for rank, glob, name in self._ranked:
            if best is not None and rank < best:
                break
            if matches(path, glob):
                best = rank
                found.add(name)
        return tuple(sorted(found))


def owners_of(experts: Sequence[Expert]) -> Owners:
    """Return the owners that the experts' pages name."""
    return Owners((expert.name, glob) for expert in experts for glob in expert.owns)


def owner_findings(files: Sequence[str], experts: Sequence[Expert], owned: Sequence[str]) -> Iterator[PageFinding]:
    """Find files below `owned` (globs) that no expert, or more than one, answers for."""
    owners = owners_of(experts)
    for path in files:
        if not any(matches(path, glob) for glob in owned):
            continue
        names = owners.of(path)
        if not names:
            yield PageFinding(path, 0, "owner", "no expert answers for it", "add a glob to `owns` of agents/NAME.md")
        elif len(names) > 1:
            message = f"{' and '.join(names)} answer for it with globs that say the same much"
            yield PageFinding(path, 0, "owner", message, "name the file in `owns` of one of them")
