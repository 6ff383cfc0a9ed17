"""Whether a unit's name is free here: keys of its registries, paths of its files, symbols it defines.

What counts as taken is said in `tooling.kit.names`; this page gathers what there is to compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, RegistryShapeError
from tooling.kit.edits import find_entry, keys
from tooling.kit.names import check_free

if TYPE_CHECKING:
    from collections.abc import Collection

    from tooling.kit.change.plan import Plan
    from tooling.kit.kind import RegistryEntry
    from tooling.kit.receipts import Receipt
    from tooling.new.unit.context import Workspace
    from tooling.new.unit.produce import Produced


def refuse_collisions(
    workspace: Workspace,
    plan: Plan,
    kind: str,
    produced: Produced,
    *,
    reserved: Collection[str] = (),
    own: Receipt | None = None,
) -> None:
    """Raise NameRefusedError when the unit's name is taken in any spelling, ConflictError when a file is in its way;
    both suggest a free name.

    What `own` (the unit before it is renamed) holds does not count, nor does an entry that says just what the unit's
    own would say.
    """
    own_files = set() if own is None else {*own.files, own.path}
    own_keys = set() if own is None else {(entry.file, entry.key) for entry in own.entries}
    taken: list[str] = []
    planned: list[str] = []
    for entry in produced.manifest.registry:
        existing = _keys(plan, entry)
        if existing is not None:
            taken += [key for key in existing if (entry.file, key) not in own_keys]
            planned.append(entry.key)
    check_free(
        produced.names,
        kind=kind,
        keys=taken,
        planned_keys=planned,
        paths=[path for path in workspace.repository.files() if path not in own_files],
        planned_paths=tuple(produced.files),
        symbols=produced.manifest.symbols,
        repository=workspace.repository,
        below=produced.settings.package_path,
        reserved=reserved,
    )
    for path in produced.files:  # git does not list what it ignores
        if path not in own_files and plan.read(path) is not None:
            raise ConflictError("exists already", where=path, fix="move it away, or use another name")


def _keys(plan: Plan, entry: RegistryEntry) -> list[str] | None:
    """Keys of an entry's table; None when it holds the very entry, or cannot be read (registering will say why)."""
    source = plan.read(entry.file)
    if source is None:
        return None
    try:
        found = find_entry(source, entry)
        if found is not None and found[0] == entry.value:
            return None
        return keys(source, entry)
    except RegistryShapeError:
        return None
