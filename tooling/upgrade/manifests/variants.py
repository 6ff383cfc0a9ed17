"""Which variants a declaration belongs to: by its file, and where variants share a manifest, by its extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.upgrade.declarations.records import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.declarations.records import Declaration, Declarations
    from tooling.upgrade.policy.records import Policy, Variant


def variants_of(declaration: Declaration, declarations: Declarations, policy: Policy) -> tuple[str, ...]:
    """Names of the variants it counts for; all of them for a file that none claims."""
    owners = policy.variants_of(declaration.path)
    if len(owners) < 2 or not declaration.group:
        return owners
    holding = tuple(
        name
        for name in owners
        if (variant := policy.variant(name)) is not None
        and _installs(variant, declaration.group, declarations.found, declaration.path)
    )
    return holding or owners


def is_claimed(path: str, policy: Policy) -> bool:
    """Whether some variant names the file."""
    return any(path in variant.manifests or path == variant.lock for variant in policy.variants)


def is_excluded(path: str, policy: Policy) -> bool:
    """Whether the policy says that the file's declarations are not the project's."""
    return any(path == each or path.startswith(f"{each}/") for each in policy.exclude)


def _installs(variant: Variant, group: str, declarations: Sequence[Declaration], path: str) -> bool:
    if not variant.extras and not variant.groups:
        return True
    reached = {*variant.extras, *variant.groups}
    waiting = list(reached)
    while waiting:
        current = waiting.pop()
        for each in declarations:
            if each.path != path or each.group != current or each.kind is not Kind.REQUIREMENT or not each.extras:
                continue
            # An extra may name others of the same project: "areal[train]". Extras of other packages have other names,
            # or do no harm here.
            waiting += [extra for extra in each.extras if extra not in reached]
            reached.update(each.extras)
    return group in reached
