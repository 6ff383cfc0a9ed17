"""A whole upgrade as one plan: declarations, locks, audits, fixes, checklists, summary.

Findings are fixed in a copy of the tree, which is audited again; only what the second audit confirms is kept.
The summary is what a person needs to review an upgrade: written with its changes, never without.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.upgrade.errors import ResolutionError, UpstreamError
from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.manifests.bump import Bump, bump
from tooling.upgrade.manifests.requests import check_requests
from tooling.upgrade.manifests.specifiers import specifier_set
from tooling.upgrade.operations.auditing import Move, audit_moves, check_looked_at
from tooling.upgrade.operations.context import unknown_now
from tooling.upgrade.report.document import code, escaped, markdown, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.cli.errors import ToolError
    from tooling.kit.change.plan import Plan
    from tooling.upgrade.findings import Audit, AuditFinding
    from tooling.upgrade.fixes.files import Fixed
    from tooling.upgrade.locks.result import LockResult, RelaxProposal
    from tooling.upgrade.manifests.requests import VersionRequest
    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.releases import Origin


MOST_CHANGES = 60
"""Version changes of a lock that are listed."""


_TITLE: Final = "# Upgrade to "


def is_summary(content: bytes) -> bool:
    """Whether a file was written by `summary`, and may be replaced."""
    return content.startswith(_TITLE.encode())


def summary(upgrade: Upgrade) -> str:
    """Return the whole document. Deterministic: no times, no machine."""
    title = ", ".join(str(request) for request in upgrade.options.requests)
    moves = [tuple(map(escaped, (move.distribution, move.old, move.new, move.why))) for move in upgrade.moves]
    fixes = [
        f"- {code(each.path)}: {each.kind} {code(each.symbol)} → {code(new.text if (new := each.replacement) else '')}"
        for each in upgrade.fixes.done
    ]
    fixes += [
        f"- left: {code(f'{each.path}:{each.line}')} {each.kind}: {escaped(why)}" for each, why in upgrade.fixes.left
    ]
    parts = [
        f"{_TITLE}{escaped(title)}\n",
        *(f"**{escaped(each)}.**\n" for each in upgrade.downgrades),
        _section("Version changes", table(("package", "from", "to", "why"), moves)),
        _section("Declarations", _edits(upgrade)),
        _section("Resolution", _locks(upgrade)),
        _section("Fixes", fixes),
    ]
    if upgrade.audits:
        parts.append(f"## Audit\n\n{markdown(upgrade.audits).rstrip()}\n")
    parts.append(_section("To be looked at", _open(upgrade)))
    return "\n".join(part for part in parts if part)


def _section(title: str, lines: Iterable[str]) -> str:
    body = list(lines)
    return f"## {title}\n\n" + "\n".join(body) + "\n" if body else ""


def _edits(upgrade: Upgrade) -> Iterator[str]:
    edits = upgrade.bump.edits if upgrade.bump else ()
    rows = (
        (code(f"{each.path}:{each.line}"), code(each.before), code(each.after), escaped(each.why)) for each in edits
    )
    yield from table(("place", "before", "after", "why"), rows)
    kept = [each for each in upgrade.bump.kept if not each.attention] if upgrade.bump else []
    if kept:
        yield ""
        yield "Left as they are:"
        yield ""
        yield from (f"- {code(f'{each.path}:{each.line}')} {code(each.text)}: {escaped(each.why)}" for each in kept)


def _locks(upgrade: Upgrade) -> Iterator[str]:
    for result in upgrade.locks:
        yield f"### {escaped(result.label.partition(' ')[2])}: {result.made}"
        yield ""
        yield from (f"- {escaped(note)}" for note in result.notes)
        if result.conflict is not None:
            yield from (f"- {escaped(str(cause))}" for cause in result.conflict.causes)
        if result.proposal is not None:
            did = "was relaxed" if result.proposal.applied else "could be relaxed"
            place = result.proposal.declaration
            yield f"- {code(place.where)} {did} to {code(result.proposal.specifier)}: {escaped(result.proposal.why)}"
        changes = result.changes[:MOST_CHANGES]
        yield from (
            f"- {escaped(each.name)} {escaped(each.old or 'new')} → {escaped(each.new or 'gone')}" for each in changes
        )
        if len(result.changes) > len(changes):
            yield f"- and {len(result.changes) - len(changes)} more"
        yield ""


def _open(upgrade: Upgrade) -> Iterator[str]:
    yield from (f"- {escaped(warning)}" for warning in upgrade.warnings)
    for audit in upgrade.audits:
        for unseen in audit.open:
            what = f"{unseen.count} uses not judged, {escaped(unseen.why)}, e.g. {code(unseen.example)}"
            yield f"- {escaped(audit.distribution)}: {what}"
        yield from (f"- {escaped(audit.distribution)}: not read: {escaped(each)}" for each in audit.unreadable)


@contextmanager
def edited_tree(context: UpgradeContext, contents: Mapping[str, bytes]) -> Iterator[UpgradeContext]:
    """Return a context whose root is the copy; releases that were opened before are not opened again.

    contents: of files that differ or are new, by path; others keep theirs."""
    with tempfile.TemporaryDirectory(prefix="areal-audit-") as folder:
        copy = Path(folder)
        if (context.root / ".git").exists():  # so that the copy's files are listed in the same way
            subprocess.run(["git", "init", "-q", "--template=", folder], check=False, capture_output=True)
        # Python files, those that flags, routes and variables are looked for in, and those that name versions
        from tooling.upgrade.interfaces.repository import source_files
        from tooling.upgrade.usage.checkout import Checkout

        root = context.root
        paths = {*Checkout(root).paths, *(file.path for file in source_files(root)), *context.declarations.files}
        paths |= {variant.lock for variant in context.policy.variants if variant.lock}
        present = {path for path in paths if (root / path).is_file() and not (root / path).is_symlink()}
        for path in sorted(present | contents.keys()):
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in contents:
                target.write_bytes(contents[path])
            else:
                with suppress(PermissionError):  # audits cannot read it either, and say so
                    shutil.copyfile(root / path, target)
        yield replace(context, root=copy, home=context.home or context.root)


@dataclass(frozen=True, slots=True)
class Fixes:
    """What became of the fixable findings."""

    done: tuple[AuditFinding, ...] = ()
    left: tuple[tuple[AuditFinding, str], ...] = ()
    """With the reason."""
    after: tuple[Audit, ...] = ()
    """The audits of the edited tree; those from before when nothing was edited."""


def fix(
    context: UpgradeContext,
    plan: Plan,
    moves: Sequence[Move],
    audits: Sequence[Audit],
    *,
    allowed: Mapping[str, SpecifierSet] | None = None,
) -> Fixes:
    """Edit files of the repository in `plan`. allowed: as for `audit_moves`, which made `audits`."""
    from tooling.upgrade.fixes.files import fix_file

    by_path: dict[str, list[AuditFinding]] = {}
    for audit in audits:
        for finding in audit.findings:
            if finding.fixable:
                by_path.setdefault(finding.path, []).append(finding)
    # For each file, the names that other files of the repository import from it
    from tooling.upgrade.usage.checkout import Checkout

    checkout = Checkout(context.root)
    found: dict[str, set[str]] = {}
    for importer in checkout.paths:
        for level, module, names in checkout.imports(importer):
            hit = checkout.find(importer, module, level) if names else None
            if hit is not None and hit[0] in by_path and hit[0] != importer:
                found.setdefault(hit[0], set()).update(names)
    exported = {path: frozenset(names) for path, names in found.items()}
    fixed: dict[str, Fixed] = {}
    for path, findings in by_path.items():
        data = plan.read(path)
        if data is not None:
            fixed[path] = fix_file(path, data, findings, exported=exported.get(path, frozenset()).__contains__)
    left = [pair for one in fixed.values() for pair in one.left]
    edited = {path: one for path, one in fixed.items() if one.done}
    if not edited:
        return Fixes(left=tuple(left), after=_tried(audits))
    context.report(f"auditing {len(edited)} fixed files again")
    after = _audited_again(context, moves, edited, allowed)
    mended = Counter(_key(finding) for one in edited.values() for finding in one.done)
    known = Counter(_key(finding) for audit in audits for finding in audit.findings)
    failed = set()
    for key, number in Counter(_key(finding) for audit in after for finding in audit.findings).items():
        if key[0] in edited and number > known[key] - mended[key]:
            failed.add(key[0])
    if failed:
        why = "the audit still finds it after the edit"
        left += [(finding, why) for path in failed for finding in edited[path].done]
        edited = {path: one for path, one in edited.items() if path not in failed}
        after = _audited_again(context, moves, edited, allowed) if edited else tuple(audits)
    for path, one in edited.items():
        plan.write(path, one.data, reason="follows the new version")
    done = tuple(finding for one in edited.values() for finding in one.done)
    return Fixes(done, tuple(left), _tried(after))


def _tried(audits: Sequence[Audit]) -> tuple[Audit, ...]:
    """Return the audits, in which nothing promises any more that `--fix` does it: what is left, it could not."""
    return tuple(
        replace(audit, findings=tuple(replace(finding, fixable=False) for finding in audit.findings))
        for audit in audits
    )


def _audited_again(
    context: UpgradeContext,
    moves: Sequence[Move],
    edited: Mapping[str, Fixed],
    allowed: Mapping[str, SpecifierSet] | None,
) -> tuple[Audit, ...]:
    """Audits of the repository as it would be."""
    with edited_tree(context, {path: one.data for path, one in edited.items()}) as then:
        return audit_moves(then, moves, allowed=allowed)


def _key(finding: AuditFinding) -> tuple[str, str, str, str]:
    """Return what a finding is, wherever edits have shifted its line. Information does not count."""
    severity = "" if finding.severity is AuditSeverity.INFO else str(finding.kind)
    return finding.path, severity, finding.symbol if severity else "", finding.parameter if severity else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOptions:
    """What the caller wants of an upgrade."""

    requests: tuple[VersionRequest, ...]
    old: Mapping[str, str] = field(default_factory=dict)
    """Version to audit from, by distribution, instead of what the repository declares."""
    bump: bool = True
    """False: audit only."""
    lock: bool = True
    fix: bool = False
    checklists: bool = True
    offline: bool = False


@dataclass
class Upgrade:
    """Everything that was found and is to be written. Filled step by step, so that a failure can still be reported."""

    options: UpgradeOptions
    plan: Plan
    moves: list[Move] = field(default_factory=list)
    bump: Bump | None = None
    locks: tuple[LockResult, ...] = ()
    audits: tuple[Audit, ...] = ()
    """Of the tree as it will be."""
    fixes: Fixes = field(default_factory=Fixes)
    checklists: tuple[str, ...] = ()
    """Files that are written."""
    warnings: list[str] = field(default_factory=list)
    problem: ToolError | None = None
    sources: tuple[Origin, ...] = ()
    """Where the releases were read from."""

    @property
    def downgrades(self) -> tuple[str, ...]:
        """A sentence for each package that goes back; said before anything else."""
        return tuple(f"{move} is a downgrade" for move in self.moves if move.is_downgrade)


def plan_upgrade(context: UpgradeContext, upgrade: Upgrade) -> None:
    """Fill in an upgrade. A conflict becomes its `problem`, and the audit goes on. What it raises leaves the steps
    before in the record: UsageError for requests that make no sense, UpstreamError for releases that cannot be read."""
    options = upgrade.options
    requests = check_requests(options.requests, context.policy)
    upgrade.moves = [_move(context, request, options.old) for request in requests]
    if options.bump:
        _bump(context, upgrade, requests)
    if options.bump and options.lock:
        try:
            _lock(context, upgrade, requests)
        except ResolutionError as error:
            upgrade.problem = error  # what the new version breaks is worth knowing all the same
    # The versions that the declarations will admit, for those that were edited
    allowed: dict[str, SpecifierSet] = {}
    for edit in upgrade.bump.edits if upgrade.bump else ():
        versions = specifier_set(edit.after if edit.after[:1] in "<>=!~" else f"=={edit.after}")
        if edit.declaration is not None and versions is not None:
            allowed.setdefault(edit.request.distribution, versions)
    upgrade.audits = audit_moves(context, upgrade.moves, allowed=allowed)
    upgrade.warnings += _doubts(context, upgrade)
    try:
        check_looked_at(context, upgrade.audits)
    except UsageError as error:
        if options.bump:  # the versions were asked for, whatever uses them
            upgrade.warnings.append(str(error))
        else:
            upgrade.problem = error
    if upgrade.problem is not None:
        return
    before = upgrade.audits
    if options.fix:
        upgrade.fixes = fix(context, upgrade.plan, upgrade.moves, upgrade.audits, allowed=allowed)
        upgrade.audits = upgrade.fixes.after
    if options.bump and options.checklists:
        try:
            _checklists(context, upgrade)
        except UsageError as error:  # a damaged one: nothing will be written, so nothing was fixed either
            upgrade.problem, upgrade.fixes, upgrade.audits = error, Fixes(), before


def _doubts(context: UpgradeContext, upgrade: Upgrade) -> Iterator[str]:
    """Find yanked releases, archives that are wrong about themselves, and overrides of the project that give a release
    what it says it cannot work with."""
    from tooling.upgrade.declarations.find import read_declarations
    from tooling.upgrade.locks.conflicts import contradicted_overrides

    for origin in context.origins():
        if origin.doubt:
            yield f"{origin.filename}: {origin.doubt}"
        if origin.yanked is not None:
            why = f": {origin.yanked}" if origin.yanked else "; its index does not say why"
            yield f"{origin.distribution} {origin.version} was yanked by its maintainers{why}"
    metadata = {
        (move.distribution, move.new): context.upstream(move.distribution, move.new).source.requires()
        for move in upgrade.moves
    }
    locked: dict[str, str] = {}
    for result in upgrade.locks:
        if not result.installs:  # overrides are the project's
            locked.update(result.versions)
    changed = {change.path: change.after for change in upgrade.plan.changes}
    declared = context.declarations
    edited = [path for path in declared.files if changed.get(path) is not None]
    found = [each for each in declared.found if each.path not in edited]
    for path in edited:
        found += read_declarations(path, (changed[path] or b"").decode("utf-8", errors="replace"))
    yield from contradicted_overrides(replace(declared, found=tuple(found)), metadata, locked)


def _move(context: UpgradeContext, request: VersionRequest, old: Mapping[str, str]) -> Move:
    if request.distribution in old:
        return Move(request.distribution, old[request.distribution], request.version)
    found = context.baseline(request.distribution, request.variant) or context.baseline(request.distribution)
    if found is None:
        raise unknown_now(context, request.distribution, f"name it: --from {request.distribution}==VERSION")
    return Move(request.distribution, found.version, request.version)


def _bump(context: UpgradeContext, upgrade: Upgrade, requests: Sequence[VersionRequest]) -> None:
    done = bump(context.root, context.policy, context.declarations, requests)
    upgrade.bump = done
    for change in done.plan.changes:
        upgrade.plan.write(change.path, change.after or b"", reason=change.reason)
    upgrade.warnings += [f"{each}; what it declares stays" for each in context.declarations.problems]
    upgrade.warnings += done.companions
    upgrade.warnings += [f"{each.path}:{each.line}: {each.text}: {each.why}" for each in done.kept if each.attention]
    upgrade.warnings += [f"no place names {each.distribution}; it is audited only" for each in done.undeclared]


def _lock(context: UpgradeContext, upgrade: Upgrade, requests: Sequence[VersionRequest]) -> None:
    from tooling.upgrade.locks.resolve import lock

    context.report("resolving")
    upgrade.locks = lock(
        context.root,
        upgrade.plan,
        context.policy,
        context.declarations,
        requests,
        judge=functools.partial(_judged, context),
        fix=upgrade.options.fix,
        offline=upgrade.options.offline,
    )
    for result in upgrade.locks:
        conflict = result.conflict
        if conflict is not None and not (result.proposal is not None and result.proposal.applied):
            causes = "; ".join(map(str, conflict.causes[:4])) or "no set of versions satisfies all requirements"
            missing = f"; no index has {', '.join(conflict.missing)}" if conflict.missing else ""
            raise ResolutionError(
                f"{result.label}: {causes}{missing}",
                where=next((cause.where for cause in conflict.causes if cause.where), result.where),
                fix=_way_out(result.proposal, requests),
                details={"raw": conflict.raw},
            )
        upgrade.warnings += [f"{result.label}: {note}" for note in result.notes if result.installs]
    # Watched packages that the resolution moves besides those that were asked for. In an environment of a script the
    # code of the project does not run.
    asked = {move.distribution for move in upgrade.moves}
    found: dict[str, Move] = {}
    for result in upgrade.locks:
        for change in result.changes if not result.installs else ():
            watched = context.policy.package(change.name) is not None
            one_each = change.old and change.new and "," not in change.old + change.new
            if watched and one_each and change.name not in asked:
                found[change.name] = Move(change.name, change.old, change.new, f"variant {result.variant} resolves so")
    upgrade.moves += found.values()


def _way_out(proposal: RelaxProposal | None, requests: Sequence[VersionRequest]) -> str:
    """Return what to do about a conflict. Only a proposal that breaks nothing, as its audit says, is recommended."""
    names = " ".join(request.distribution for request in requests)
    search = f"`areal-upgrade-deps latest {names}` finds the newest version that fits"
    if proposal is None:
        return f"{search}; or upgrade the packages together"
    declaration = proposal.declaration
    name, place = declaration.distribution, f"{declaration.distribution}{proposal.specifier} at {declaration.where}"
    if proposal.breaking is None:
        return f"{place} would resolve it; what {name} {proposal.version} breaks was not checked: {proposal.evidence}"
    if proposal.breaking:
        lines = "1 line" if proposal.breaking == 1 else f"{proposal.breaking} lines"
        refused = f"{place} would resolve it, but {name} {proposal.version} breaks {lines} ({proposal.evidence})"
        return f"{refused}; {search}"
    return f"--fix writes {place}: {proposal.why}"


def _judged(context: UpgradeContext, proposal: RelaxProposal) -> RelaxProposal:
    """Return the proposal with what its version breaks of the code."""
    name = proposal.declaration.distribution
    found = context.baseline(name)
    if found is None:
        return replace(proposal, evidence="no manifest says which version is used now")
    try:
        audits = audit_moves(context, [Move(name, found.version, proposal.version)])
        check_looked_at(context, audits)
    except (UsageError, UpstreamError) as error:
        return replace(proposal, evidence=str(error))
    breaking = [each for each in audits[0].findings if each.severity is AuditSeverity.BREAKING]
    first = f"{breaking[0].path}:{breaking[0].line}: {breaking[0].message}" if breaking else ""
    return replace(proposal, breaking=len(breaking), evidence=first)


def _checklists(context: UpgradeContext, upgrade: Upgrade) -> None:
    """Check or write checklists. Raises UsageError for a damaged one."""
    from tooling.upgrade.declarations.find import find_declarations
    from tooling.upgrade.operations.checking import check, write

    names = [move.distribution for move in upgrade.moves if context.policy.package(move.distribution)]
    if not names or context.policy.inferred:
        return  # a repository without a policy keeps no checklists
    before = {change.path: change.after or b"" for change in upgrade.plan.changes}
    with edited_tree(context, before) as edited:  # they describe code and versions as `areal-audit` will find them
        then = replace(edited, declarations=find_declarations(edited.root))
        checked = check(then, only=names, plan=upgrade.plan)
    write(checked, upgrade.plan)
    upgrade.warnings += [f"{one.path} was not written: {one.unseen}" for one in checked if one.unseen]
    upgrade.checklists = tuple(change.path for change in upgrade.plan.changes if change.path not in before)
