"""`areal-audit`: whether the checklists say what the code does, for every watched package that the code uses.

Files of generated units (`areal-new list`) are left out: their templates decide what they use, they come and go with
one command, and checklists that named them would be stale after each. An upgrade reads them like any other code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.kit.change.plan import Plan
from tooling.kit.receipts import read_receipts
from tooling.python.source import calm
from tooling.upgrade.checklists.document import Drift, collect, drift, render
from tooling.upgrade.errors import UpstreamError
from tooling.upgrade.sources.cache import prune_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.checklists.document import Checklist
    from tooling.upgrade.operations.context import UpgradeContext
    from tooling.upgrade.policy.watched import FocusedPackage
    from tooling.upgrade.uses import FileUses

FOLDER: Final = "skills/upgrade-deps/checklists"


@dataclass(frozen=True, slots=True)
class CheckedPackage:
    """One package."""

    distribution: str
    version: str
    path: str
    drifts: tuple[Drift, ...]
    checklist: Checklist | None
    """None for a package that the code does not use."""
    unseen: str = ""
    """Why signatures could not be compared."""


@calm()
def check(context: UpgradeContext, *, only: Sequence[str] = (), plan: Plan | None = None) -> tuple[CheckedPackage, ...]:
    """Compare all checklists. only: distributions; all that are watched when empty. plan: where the checklists are
    read, if not from the disk.

    Raises UsageError for a package in `only` that is not watched, and for a damaged receipt."""
    packages = [context.package(name) for name in only] or list(context.policy.packages)
    # Of all that are watched, also to check one: which values lead to it depends on what else a value may be
    imports = tuple(dict.fromkeys(name for package in context.policy.packages for name in package.imports))
    generated = {path for receipt in read_receipts(context.root) for path in receipt.files}
    files = [file for file in context.usage(imports).files if file.path not in generated]
    checked = tuple(_checked(context, package, files, plan) for package in packages)
    prune_kept(context.cache)
    return checked


def write(checked: Sequence[CheckedPackage], plan: Plan) -> None:
    """Put right what is untrue. Raises UsageError for a damaged checklist, which is left for people."""
    for one in checked:
        if one.checklist is None or one.unseen:
            continue
        old = plan.read(one.path)
        text = render(one.checklist, None if old is None else old.decode("utf-8", errors="replace"), one.path)
        plan.write(one.path, text.encode(), reason=f"what the code uses of {one.distribution}")


def _checked(
    context: UpgradeContext, package: FocusedPackage, files: Sequence[FileUses], plan: Plan | None
) -> CheckedPackage:
    path = f"{FOLDER}/{package.distribution}.md"
    used = any(use.package in package.imports for file in files for use in file.uses)
    content = (plan or Plan(context.root)).read(path)
    text = None if content is None else content.decode("utf-8", errors="replace")
    if not used:
        stale = [Drift(path, "file", "stale", "nothing uses this package any more")] if text is not None else []
        return CheckedPackage(package.distribution, "", path, tuple(stale), None)
    found = context.baseline(package.distribution)
    version = found.version if found else ""
    upstream, unseen = None, ""
    if not version:
        unseen = "no manifest says which version is used"
    else:
        try:
            upstream = context.upstream(package.distribution, version)
        except UpstreamError as error:
            unseen = str(error)
    checklist = collect(package, version, files, upstream)
    drifts = drift(checklist, text, path, signatures=not unseen)
    return CheckedPackage(package.distribution, version, path, tuple(drifts), checklist, unseen)
