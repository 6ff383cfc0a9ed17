"""Plans in files: what `--plan-out` writes and `areal-new apply` reads.

    save_plan(change, "reward", "plan.json", force=False)
    change = load_plan("plan.json", workspace)

A plan file may come from anybody: paths and types are checked, nothing in it is evaluated, and applying it refuses when
a file has changed since it was made. Its content is still code that its tests run; review it like a patch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tooling.cli.errors import ConflictError, UsageError, WriteError
from tooling.cli.report import Registration
from tooling.kit.change.plan import read_inside, safe_path
from tooling.kit.change.plan_file import plan_document, plan_from_document
from tooling.new.change import KeptFile, UnitRequest

if TYPE_CHECKING:
    from tooling.new.change import Change
    from tooling.new.workspace import Workspace

_TEXTS = ("command", "kind", "name", "commit")
_LISTS = ("tests", "next", "warnings", "conflicts", "references", "backups")
_TABLES: dict[str, dict[str, type]] = {
    "kept": {"path": str, "reason": str},
    "registered": {field.name: int if field.name == "line" else str for field in fields(Registration)},
    "templates": {"kind": str, "tree": str},
}
"""Lists of objects in a plan file, with the fields of an object and their types."""


def save_plan(change: Change, command: str, file: str, *, force: bool) -> None:
    """Write a plan file, whole or not at all. Raises ConflictError when it exists and `force` is not given, WriteError
    when the disk refuses."""
    extra = {
        "command": command,
        "kind": change.request.kind,
        "name": change.receipt.name if change.receipt is not None else change.request.name,
        "commit": change.commit,
        "tests": list(change.tests),
        "next": change.next_steps,
        "warnings": change.warnings,
        "conflicts": change.conflicts,
        "references": list(change.references),
        "backups": change.backups,
        "kept": [item._asdict() for item in change.kept],
        "registered": [asdict(item) for item in change.registered],
        "templates": [{"kind": kind, "tree": tree} for kind, tree in sorted(change.templates.items())],
    }
    text = json.dumps(plan_document(change.plan, extra=extra), indent=2, ensure_ascii=False) + "\n"
    path = Path(file)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # so that the file is never seen half written
    try:
        with temporary.open("xb") as stream:
            stream.write(text.encode("utf-8", errors="surrogatepass"))
            stream.flush()
            os.fsync(stream.fileno())
        if force:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError as error:
        raise ConflictError("exists already", where=file, fix="choose another FILE, or add --force") from error
    except OSError as error:
        raise WriteError(
            f"the plan cannot be saved: {error.strerror}", where=file, fix="choose another FILE"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def load_plan(file: str, workspace: Workspace) -> Change:
    """Return the change that a plan file describes; its plan is empty when everything in it is on disk already.

    Raises UsageError for a damaged file, ConflictError naming every file that changed since the plan was made.
    """
    try:
        document = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=file, fix="name a file of --plan-out") from error
    except (ValueError, RecursionError) as error:
        _refuse(file, f"not JSON: {error}")
    if not isinstance(document, dict):
        _refuse(file, "not a JSON object")
    plan, extra = plan_from_document(document, workspace.root), document["extra"]
    damaged = [name for name in _TEXTS if not isinstance(extra.get(name), str)]
    damaged += [name for name in _LISTS if not _is_list(extra.get(name), str)]
    damaged += [
        name
        for name, known in _TABLES.items()
        if not _is_list(extra.get(name), dict)
        or not all(item.keys() == known.keys() for item in extra[name])
        or not all(isinstance(value, known[field]) for item in extra[name] for field, value in item.items())
    ]
    if damaged:
        _refuse(file, f"`extra` has no usable {', '.join(damaged)}")
    change = workspace.change(UnitRequest(kind=extra["kind"], name=extra["name"]))
    if all(read_inside(workspace.root, item.path) == item.after for item in plan.changes):
        return change
    moved = [item.path for item in plan.changes if read_inside(workspace.root, item.path) != item.before]
    if moved:
        raise ConflictError(
            "changed since the plan was made", where=", ".join(moved), fix="make the plan again with --plan-out"
        )
    for path in extra["tests"]:  # a path goes to pytest as an argument
        if safe_path(path) != path or path.startswith("-") or plan.read(path) is None:
            _refuse(file, f"the test {path!r} is not in the repository")
    change.plan, change.commit = plan, extra["commit"]
    change.tests, change.references = tuple(extra["tests"]), tuple(extra["references"])
    change.next_steps, change.warnings, change.conflicts = extra["next"], extra["warnings"], extra["conflicts"]
    change.backups = [safe_path(path) for path in extra["backups"]]
    change.kept = [KeptFile(**item) for item in extra["kept"]]
    change.registered = [Registration(**item) for item in extra["registered"]]
    change.templates = {item["kind"]: item["tree"] for item in extra["templates"]}
    return change


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _refuse(file: str, problem: str) -> NoReturn:
    raise UsageError(f"the saved plan is damaged: {problem}", where=file, fix="make the plan again with --plan-out")
