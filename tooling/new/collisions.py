"""Whether a unit's name is free here: keys of its registries, paths of its files, symbols it defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.kit.errors import ConflictError

if TYPE_CHECKING:
    from tooling.kit.plan import Plan
    from tooling.kit.receipts import Receipt
    from tooling.new.context import Workspace
    from tooling.new.produce import Produced


def refuse_collisions(
    workspace: Workspace, plan: Plan, kind: str, produced: Produced, *, own: Receipt | None = None
) -> None:
    """Raise ConflictError when a file of the unit exists; those of `own` (the unit before a rename) do not count."""
    taken = [path for path in produced.files if plan.read(path) is not None and (own is None or path not in own.files)]
    if taken:
        raise ConflictError("exists already", where=", ".join(taken))
