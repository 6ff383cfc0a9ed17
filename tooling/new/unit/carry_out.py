"""Carrying a plan out: backups first, then the template into git, then the files as one transaction.

    with transaction(workspace.repository, wait_seconds=10, note=print_note):
        outcome = carry_out(workspace, unit_plan.plan, unit_plan.extra)

The caller holds the repository's lock. Backups lie in the git directory, out of sight of git and of every tool that
walks the work tree.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import ConflictError, ToolError, UsageError, WriteError
from tooling.kit.change.disk import ignore
from tooling.kit.change.plan import Plan, safe_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.kit.change.disk import Observe
    from tooling.new.unit.context import Workspace


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done besides the plan."""

    warnings: tuple[str, ...] = ()
    backup: Path | None = None
    """Folder that holds the files a forced undo took away, at their paths."""


def carry_out(workspace: Workspace, plan: Plan, extra: Mapping[str, Any], *, observe: Observe = ignore) -> Outcome:
    """Apply a plan. `extra` is that of its UnitPlan, as it was or read from a saved plan.

    Raises what `apply_plan` raises; then nothing of the plan is on disk. `observe` is handed on to it.
    """
    from tooling.kit.change.transaction import apply_plan

    backups, templates = _parts(extra)
    warnings = tuple(filter(None, [_store_template(workspace, kind, tree) for kind, tree in templates.items()]))
    folder = _back_up(workspace, plan, backups)
    try:
        apply_plan(workspace.repository, plan, observe=observe)
    except BaseException:
        if folder is not None:
            _discard(folder)
        raise
    return Outcome(warnings, folder)


def _parts(extra: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Backups, and templates by kind, of an `extra`, which may come from a file that anybody wrote."""
    backups, templates = extra.get("backups", []), extra.get("templates", [])
    if not isinstance(backups, list) or not all(isinstance(path, str) for path in backups):
        raise UsageError("the saved plan is damaged: `backups` is no list of paths")
    if not isinstance(templates, list) or not all(_is_template(item) for item in templates):
        raise UsageError("the saved plan is damaged: `templates` needs objects with the texts kind and tree")
    return [safe_path(path) for path in backups], {item["kind"]: item["tree"] for item in templates}


def _is_template(item: object) -> bool:
    return (
        isinstance(item, dict)
        and item.keys() == {"kind", "tree"}
        and all(isinstance(value, str) for value in item.values())
    )


def _store_template(workspace: Workspace, kind: str, tree: str) -> str:
    """Keep a template's tree in git; "" or a warning: the unit is complete without it."""
    from tooling.kit.template.tree import store_tree

    try:
        stored = store_tree(workspace.repository, workspace.kind(kind).folder)
    except ToolError as error:
        return f"the template of {kind} was not stored in git, a later update may miss its base: {error}"
    if stored == tree:
        return ""
    return f"the template of {kind} changed since the plan was made; `areal-new update` will bring its units up to date"


def _back_up(workspace: Workspace, plan: Plan, paths: list[str]) -> Path | None:
    if not paths:
        return None
    before = {change.path: change.before for change in plan.changes}
    folder = _new_folder(workspace.repository.state / "backup")
    try:
        for path in paths:
            content = before.get(path)
            if content is None:
                raise ConflictError("the plan does not change it, so it cannot be backed up", where=path)
            _write(folder / path, content)
    except OSError as error:
        _discard(folder)
        raise WriteError(f"no backup could be written: {error.strerror}", where=os.fspath(folder)) from error
    except ToolError:
        _discard(folder)
        raise
    return folder


def _new_folder(parent: Path) -> Path:
    """An empty folder named by the time, e.g. "20260131T120000Z" or, within the same second, "20260131T120000Z-2"."""
    import time

    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise WriteError(f"no backup could be written: {error.strerror}", where=os.fspath(parent)) from error
        return folder
    raise WriteError("too many backups in one second", where=os.fspath(parent))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _discard(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
