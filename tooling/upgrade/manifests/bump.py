"""Moving a repository's declarations to new versions, as a plan: only the versions' own characters change.

    bump(root, policy, declarations, [parse_request("vllm==0.18.0")]).plan      # dry run, diff, apply: the kit's views

Planning the same again after it was applied gives an empty plan.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError
from tooling.kit.change.plan import Plan
from tooling.python.versions import version_or_none
from tooling.upgrade.declarations.declaration import Declaration, DeclarationKind, SpecifierStyle, is_compiled
from tooling.upgrade.manifests.baseline import baseline, is_claimed, is_excluded, variants_of
from tooling.upgrade.manifests.requests import VersionRequest, check_requests
from tooling.upgrade.manifests.specifiers import allows, changed, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.upgrade.declarations.declaration import Declarations
    from tooling.upgrade.policy.watched import UpgradePolicy


@dataclass(frozen=True, slots=True)
class VersionEdit:
    """One place that changes."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    why: str
    request: VersionRequest
    declaration: Declaration | None = None
    """None for places that the policy finds by pattern."""


@dataclass(frozen=True, slots=True)
class KeptDeclaration:
    """One place that stays, and why; `attention` if a person should look at it."""

    path: str
    line: int
    text: str
    why: str
    request: VersionRequest
    attention: bool = False


@dataclass(frozen=True, slots=True)
class Bump:
    """Everything that moving to the requests means for the manifests."""

    plan: Plan
    edits: tuple[VersionEdit, ...]
    kept: tuple[KeptDeclaration, ...]
    companions: tuple[str, ...]
    """A sentence for each member of a family that was not asked for."""
    undeclared: tuple[VersionRequest, ...]
    """Requests for packages that no place names."""


def bump(root: Path, policy: UpgradePolicy, declarations: Declarations, requests: Sequence[VersionRequest]) -> Bump:
    """Make the plan. Raises UsageError for requests that make no sense (`check_requests`), ConflictError when a file
    changed since `declarations` were read."""
    plan = Plan(root)
    edits: list[VersionEdit] = []
    kept: list[KeptDeclaration] = []
    companions: list[str] = []
    for request in check_requests(requests, policy):
        made, left = _declared(plan, policy, declarations, request)
        followed, missed = _followed(plan, policy, request, made)
        edits += [*made, *followed]
        kept += [*left, *missed]
        asked = {each.distribution for each in requests}
        for family in policy.family(request.distribution):
            for member in family.packages:
                if member in asked or not declarations.of(member):
                    continue
                now = baseline(member, declarations, policy, root, variant=request.variant)
                what = f"{member} {now.version}" if now is not None and now.version else member
                companions.append(
                    f"{what} moves together with {request.distribution}: "
                    f"{family.why}; consider upgrading both in one command"
                )
    edits.sort(key=lambda each: (each.path, each.start))
    by_path: dict[str, list[VersionEdit]] = {}
    for edit in edits:
        by_path.setdefault(edit.path, []).append(edit)
    for path, mine in by_path.items():
        content = plan.read(path)
        text = (content or b"").decode("utf-8")
        for edit in reversed(mine):
            if edit.before and text[edit.start : edit.end] != edit.before:
                raise ConflictError(
                    "changed since it was read", where=f"{path}:{edit.line}", fix="run the command again"
                )
            text = text[: edit.start] + edit.after + text[edit.end :]
        reasons = dict.fromkeys(f"{edit.request.distribution} {edit.request.version}" for edit in mine)
        plan.write(path, text.encode("utf-8"), reason=", ".join(reasons))
    named = {*(each.request for each in edits), *(each.request for each in kept)}
    unnamed = tuple(each for each in dict.fromkeys(requests) if each not in named)
    return Bump(plan, tuple(edits), tuple(kept), tuple(companions), unnamed)


# ------------------------------------------------------------------------------------------------------- declarations


def _declared(
    plan: Plan, policy: UpgradePolicy, declarations: Declarations, request: VersionRequest
) -> tuple[list[VersionEdit], list[KeptDeclaration]]:
    edits: list[VersionEdit] = []
    kept: list[KeptDeclaration] = []
    for each in declarations.of(request.distribution):
        why, attention = _left_alone(plan, policy, declarations, request, each)
        if not why:
            package = policy.package(request.distribution) if each.kind is DeclarationKind.REQUIREMENT else None
            rule = package.range if package is not None else "keep"
            outcome = changed(each.specifier, each.style, request.version, rule)
            if outcome.specifier != each.specifier:
                note = "; whether the image exists is not checked" if each.kind is DeclarationKind.IMAGE else ""
                place = (each.path, each.line, each.start, each.end)
                edits.append(VersionEdit(*place, each.specifier, outcome.specifier, outcome.why + note, request, each))
                continue
            why, attention = outcome.why, outcome.problem
        kept.append(KeptDeclaration(each.path, each.line, each.text, why, request, attention))
    return edits, kept


def _left_alone(
    plan: Plan,
    policy: UpgradePolicy,
    declarations: Declarations,
    request: VersionRequest,
    declaration: Declaration,
) -> tuple[str, bool]:
    """Why a declaration of the package is not this request's business, and whether to look at it; ("", False) if it
    is."""
    if is_excluded(declaration.path, policy):
        return "the policy excludes the file", False
    if request.variant and request.variant not in variants_of(declaration, declarations, policy):
        return f"not part of variant {request.variant}", False
    if request.variant and len(policy.variants) > 1 and not is_claimed(declaration.path, policy):
        return "no variant claims the file, so it is not known whose version this is", True
    is_list = declaration.path.endswith((".txt", ".in"))
    if is_list and is_compiled((plan.read(declaration.path) or b"").decode("utf-8", errors="replace")):
        return "a tool wrote the file from another one: run that tool again", True
    if declaration.hashed:
        return "pinned by hash: the hashes of the new version are needed", True
    old = baseline(request.distribution, declarations, policy, plan.root, variant=request.variant)
    if old is not None and declaration.is_pinned and old.where != declaration.where:
        pinned = _public(declaration.specifier.strip().lstrip("=").strip())
        # Neither the old nor the new version: of an extra for another backend, or of an image that only sounds alike
        if pinned not in map(_public, (old.version, *old.others, request.version)):
            return "pins another version than the one that is upgraded, so this may be on purpose", True
    # A line for another platform, beside one that holds the old version: "torch<2.9.1; darwin"
    place = (declaration.path, declaration.section, declaration.group)
    siblings = [
        each for each in declarations.of(request.distribution) if (each.path, each.section, each.group) == place
    ]
    is_one_of_several = len(siblings) > 1 and declaration.marker and declaration.style is SpecifierStyle.PEP508
    is_other = old is not None and allows(declaration.specifier, parse_version(old.version)) is False
    why = f"for {declaration.marker}, where the old version was not allowed either"
    return why if is_one_of_several and is_other else "", False


def _public(text: str) -> str:
    version = version_or_none(text)
    return version.public if version is not None else text


# ---------------------------------------------------------------------------------------------------------- followers


def _followed(
    plan: Plan, policy: UpgradePolicy, request: VersionRequest, made: list[VersionEdit]
) -> tuple[list[VersionEdit], list[KeptDeclaration]]:
    """Places that the policy finds by pattern, unless they are declarations that were edited already."""
    edits: list[VersionEdit] = []
    kept: list[KeptDeclaration] = []
    taken = {(each.path, each.start) for each in made}
    for follower in policy.followers:
        if follower.package != request.distribution:
            continue
        content = plan.read(follower.file)
        before, after = map(re.escape, follower.pattern.split("{version}"))
        pattern = rf"{before}(?P<version>\d[\w.+!]*?){after}(?![\w.+]*\d)"
        hits = list(re.finditer(pattern, content.decode(errors="replace"))) if content else []
        if not hits:
            why = f"`{follower.pattern}` does not stand there any more"
            kept.append(KeptDeclaration(follower.file, 0, follower.pattern, why, request, attention=True))
        for hit in hits:
            start, end = hit.span("version")
            line = hit.string.count("\n", 0, start) + 1
            if hit["version"] == request.version:
                kept.append(KeptDeclaration(follower.file, line, hit[0], "names the version already", request))
            elif (follower.file, start) not in taken:
                why = "follows the version"
                edits.append(
                    VersionEdit(follower.file, line, start, end, hit["version"], request.version, why, request)
                )
    return edits, kept
