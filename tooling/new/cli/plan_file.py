"""Plans in files: what `--plan-out` writes and `areal-new apply` reads.

    save_plan(work, "reward", "plan.json", force=False)
    work = load_plan("plan.json", root)

A plan file may come from anybody: paths and types are checked, nothing in it is evaluated, and applying it refuses when
a file has changed since it was made. Its content is still code that its tests run; review it like a patch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from tooling.cli.errors import ConflictError, UsageError, WriteError
from tooling.kit.change.plan import Plan, read_inside, safe_path
from tooling.kit.change.plan_file import plan_document, plan_from_document
from tooling.kit.kind import DocumentEntry, RegistryEntry
from tooling.new.unit.records import Kept, Registered, UnitPlan
from tooling.new.unit.work import Work

_TEXTS = ("command", "kind", "name", "commit")
_LISTS = ("tests", "next", "warnings", "conflicts", "references")
_RECORDS = {"registry": RegistryEntry, "document": DocumentEntry}


def save_plan(work: Work, command: str, file: str, *, force: bool) -> None:
    """Write a plan file, whole or not at all. Raises ConflictError when it exists and `force` is not given, WriteError
    when the disk refuses."""
    unit = work.unit
    extra = {
        "command": command,
        "kind": work.kind,
        "name": work.name,
        "commit": unit.commit,
        "tests": list(unit.tests),
        "next": list(unit.next_steps),
        "warnings": list(unit.warnings),
        "conflicts": list(unit.conflicts),
        "references": list(unit.references),
        "kept": [asdict(item) for item in unit.kept],
        "registered": [_packed(item) for item in unit.registered],
        "carry_out": dict(work.extra),
    }
    content = json.dumps(plan_document(unit.plan, extra=extra), indent=2, ensure_ascii=False) + "\n"
    _write(Path(file), content.encode("utf-8", errors="surrogatepass"), force=force)


def load_plan(file: str, root: Path) -> Work:
    """The work that a plan file describes; its plan is empty when everything in it is on disk already. Raises
    UsageError for a damaged file, ConflictError naming every file that changed since the plan was made."""
    document = _read(file)
    plan = plan_from_document(document, root)
    extra = document["extra"]
    damaged = [name for name in _TEXTS if not isinstance(extra.get(name), str)]
    damaged += [name for name in _LISTS if not _is_texts(extra.get(name))]
    if damaged or not isinstance(extra.get("carry_out"), dict):
        _refuse(file, f"`extra` lacks {', '.join(damaged) or 'carry_out'}")
    registered = tuple(_unpacked(file, item) for item in _items(file, extra, "registered"))
    kept = tuple(_kept(file, item) for item in _items(file, extra, "kept"))
    if _is_applied(plan):
        return Work(UnitPlan(plan=Plan(root), receipt=None), extra["kind"], extra["name"], {})
    _refuse_moved(plan)
    unit = UnitPlan(
        plan=plan,
        receipt=None,
        registered=registered,
        next_steps=tuple(extra["next"]),
        commit=extra["commit"],
        warnings=tuple(extra["warnings"]),
        tests=tuple(_test(file, plan, path) for path in extra["tests"]),
        kept=kept,
        conflicts=tuple(extra["conflicts"]),
        references=tuple(extra["references"]),
    )
    return Work(unit, extra["kind"], extra["name"], extra["carry_out"])


def _is_applied(plan: Plan) -> bool:
    return all(read_inside(plan.root, change.path) == change.after for change in plan.changes)


def _refuse_moved(plan: Plan) -> None:
    moved = [change.path for change in plan.changes if read_inside(plan.root, change.path) != change.before]
    if moved:
        raise ConflictError(
            "changed since the plan was made", where=", ".join(moved), fix="make the plan again with --plan-out"
        )


def _packed(item: Registered) -> dict[str, Any]:
    kind = "registry" if isinstance(item.entry, RegistryEntry) else "document"
    return {"type": kind, "entry": asdict(item.entry), "line": item.line, "action": item.action}


def _unpacked(file: str, item: dict[str, Any]) -> Registered:
    record, entry, line, action = (item.get(name) for name in ("type", "entry", "line", "action"))
    if not isinstance(record, str) or record not in _RECORDS or not isinstance(entry, dict):
        _refuse(file, "`registered` holds something else than entries")
    if not isinstance(line, int) or action not in ("add", "remove") or not _is_texts(list(entry.values())):
        _refuse(file, "`registered` holds an entry of wrong types")
    try:
        return Registered(_RECORDS[record](**entry), line, "add" if action == "add" else "remove")
    except TypeError:
        _refuse(file, f"`registered` holds a {record} entry with wrong fields")


def _kept(file: str, item: dict[str, Any]) -> Kept:
    if item.keys() != {"path", "reason"} or not _is_texts(list(item.values())):
        _refuse(file, "`kept` holds something else than paths with reasons")
    return Kept(item["path"], item["reason"])


def _test(file: str, plan: Plan, path: str) -> str:
    """A test file that will be there: its path goes to pytest as an argument."""
    if safe_path(path) != path or path.startswith("-") or plan.read(path) is None:
        _refuse(file, f"the test {path!r} is not in the repository")
    return path


def _items(file: str, extra: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = extra.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        _refuse(file, f"`{name}` is no list of objects")
    return items


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _refuse(file: str, problem: str) -> NoReturn:
    raise UsageError(f"the saved plan is damaged: {problem}", where=file, fix="make the plan again with --plan-out")


def _read(file: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=file, fix="name a file of --plan-out") from error
    except (ValueError, RecursionError) as error:
        _refuse(file, f"no JSON: {error}")
    if not isinstance(document, dict):
        _refuse(file, "no JSON object")
    return document


def _write(path: Path, content: bytes, *, force: bool) -> None:
    """Beside the target first, so that the file is never seen half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        _publish(temporary, path, force=force)
    except OSError as error:
        raise WriteError(
            f"the plan cannot be saved: {error.strerror}", where=os.fspath(path), fix="choose another FILE"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path, *, force: bool) -> None:
    if force:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError as error:
        raise ConflictError(
            "exists already", where=os.fspath(path), fix="choose another FILE, or add --force"
        ) from error
