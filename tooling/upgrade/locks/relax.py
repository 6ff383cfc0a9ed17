"""Whether one of the project's own requirements is all that stands in the way of a resolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.find import read_declarations
from tooling.upgrade.declarations.records import Kind
from tooling.upgrade.locks.compare import versions
from tooling.upgrade.locks.conflicts import declaration_of
from tooling.upgrade.locks.records import Conflict, Proposal
from tooling.upgrade.manifests.specifiers import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.declarations.lockfiles import Lock
    from tooling.upgrade.declarations.records import Declaration, Declarations
    from tooling.upgrade.manifests.requests import Request

_NEGOTIABLE = frozenset({Kind.REQUIREMENT, Kind.CONSTRAINT, Kind.OVERRIDE})


@dataclass(frozen=True, slots=True)
class Attempted:
    """One run of the resolver: a lock or a conflict."""

    lock: Lock | None = None
    conflict: Conflict | None = None
    content: bytes | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A proposal with the text that carries it out."""

    record: Proposal
    content: bytes

    def written(self, plan: Plan) -> Found:
        """Puts it into the plan."""
        declaration = self.record.declaration
        plan.write(declaration.path, self.content, reason=f"{declaration.distribution} {self.record.version}")
        return replace(self, record=replace(self.record, applied=True))


def propose(
    plan: Plan,
    conflict: Conflict,
    declarations: Declarations,
    requests: Sequence[Request],
    attempt: Callable[[Mapping[str, bytes]], Attempted],
) -> Found | None:
    """A proposal, if exactly one own requirement (of a package that was not asked for) is among the causes, and without
    it everything resolves. attempt: resolves with some files' contents replaced."""
    asked = {each.distribution for each in requests}
    obstacles = {
        (each.distribution, each.specifier)
        for each in conflict.causes
        if each.own and each.specifier and each.distribution not in asked
    }
    if len(obstacles) != 1:
        return None
    declared = declaration_of(*next(iter(obstacles)), declarations)
    if declared is None or declared.kind not in _NEGOTIABLE:
        return None
    placed = _placed(plan, declared)
    if placed is None:
        return None
    text, now = placed
    relaxed = attempt({now.path: _replaced(text, now, "")})
    if relaxed.lock is None:
        return None
    version = versions(relaxed.lock).get(now.distribution, "")
    if not version or "," in version:
        return None
    outcome = changed(now.specifier, now.style, version.split(" ")[0])
    if outcome.problem or outcome.specifier == now.specifier:
        return None
    wanted = next((str(each) for each in conflict.causes if not each.own and each.distribution == now.distribution), "")
    why = f"it is the only requirement of the project in the way{': ' + wanted if wanted else ''}; {outcome.why}"
    proposal = Proposal(declared, outcome.specifier, version, why)
    return Found(proposal, _replaced(text, now, outcome.specifier))


def _placed(plan: Plan, declaration: Declaration) -> tuple[str, Declaration] | None:
    """The declaration as it stands after the plan, whose edits may have moved it."""
    content = plan.read(declaration.path)
    if content is None:
        return None
    text = content.decode("utf-8")
    for each in read_declarations(declaration.path, text):
        if replace(each, start=declaration.start, end=declaration.end, line=declaration.line) == declaration:
            return text, each
    return None


def _replaced(text: str, declaration: Declaration, specifier: str) -> bytes:
    return (text[: declaration.start] + specifier + text[declaration.end :]).encode("utf-8")
