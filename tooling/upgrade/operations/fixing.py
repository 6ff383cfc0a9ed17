"""Fix findings in a copy of the tree, audit again, and keep only what the second audit confirms."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.operations.auditing import audit_moves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.findings import Audit, AuditFinding
    from tooling.upgrade.fixes.files import Fixed
    from tooling.upgrade.operations.auditing import Move
    from tooling.upgrade.operations.context import UpgradeContext


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

        root, locks = context.root, [variant.lock for variant in context.policy.variants if variant.lock]
        paths = {
            *Checkout(root).paths,
            *(file.path for file in source_files(root)),
            *context.declarations.files,
            *locks,
        }
        for path in sorted(
            {
                *tuple(sorted(path for path in paths if (root / path).is_file() and not (root / path).is_symlink())),
                *contents,
            }
        ):
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in contents:
                target.write_bytes(contents[path])
            else:
                with suppress(PermissionError):  # audits cannot read it either, and say so
                    shutil.copyfile(context.root / path, target)
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
