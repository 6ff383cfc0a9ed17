"""Keeps a plan as a JSON document, and reads it back.

    document = plan_document(plan)             # JSON values; json.dump it
    plan = plan_from_document(document, root)  # checked: the document may come from anywhere

A loaded plan is not compared with the disk here; applying it is what refuses when a file has changed since.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.kit.change.plan import PathChange, Plan, safe_path, sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = "areal-new-plan"
VERSION = 1


def plan_document(plan: Plan, *, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the plan as JSON values, free of the place it was made in. `extra` is kept untouched for the caller.

    Example: {"format": "areal-new-plan", "version": 1, "changes": [{"path": "a.py", "action": "create", "reason": "..",
    "before": null, "after": {"sha256": "..", "text": ".."}}], "extra": {}}; content that is not UTF-8 has "base64".
    """
    changes = [
        {
            "path": change.path,
            "action": change.action,
            "reason": change.reason,
            "before": _packed(change.before),
            "after": _packed(change.after),
        }
        for change in plan.changes
    ]
    return {"format": FORMAT, "version": VERSION, "changes": changes, "extra": dict(extra or {})}


def plan_from_document(document: object, root: Path) -> Plan:
    """Return the plan that `plan_document` gave, for the repository at `root`.

    Raises UsageError for another format or version, unknown or missing fields, damaged content, unsafe paths;
    ConflictError for paths that exclude each other.
    """
    fields = _fields(document, "plan", {"format", "version", "changes", "extra"})
    if (fields["format"], fields["version"]) != (FORMAT, VERSION):
        raise UsageError(
            f"not a saved plan of version {VERSION}: {fields['format']!r}, version {fields['version']!r}",
            fix="make the plan again with --plan-out",
        )
    if not isinstance(fields["changes"], list) or not isinstance(fields["extra"], dict):
        raise _damaged("plan", "`changes` is not a list or `extra` is not an object")
    return Plan.from_changes(root, [_change(item, number) for number, item in enumerate(fields["changes"])])


def _packed(content: bytes | None) -> dict[str, str] | None:
    if content is None:
        return None
    try:
        return {"sha256": sha256(content), "text": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"sha256": sha256(content), "base64": base64.b64encode(content).decode("ascii")}


def _unpacked(packed: object, where: str) -> bytes | None:
    if packed is None:
        return None
    kind = "text" if isinstance(packed, dict) and "text" in packed else "base64"
    fields = _fields(packed, where, {"sha256", kind})
    try:
        text = fields[kind]
        content = text.encode("utf-8") if kind == "text" else base64.b64decode(text, validate=True)
    except (AttributeError, TypeError, ValueError) as error:  # base64 and Unicode errors are ValueErrors
        raise _damaged(where, str(error)) from error
    if sha256(content) != fields["sha256"]:
        raise _damaged(where, "the content does not have the recorded sha256")
    return content


def _change(item: object, number: int) -> PathChange:
    where = f"changes[{number}]"
    fields = _fields(item, where, {"path", "action", "reason", "before", "after"})
    if not isinstance(fields["path"], str) or not isinstance(fields["reason"], str):
        raise _damaged(where, "`path` or `reason` is not text")
    change = PathChange(
        safe_path(fields["path"]),
        _unpacked(fields["before"], f"{where}.before"),
        _unpacked(fields["after"], f"{where}.after"),
        fields["reason"],
    )
    if change.before == change.after or change.action != fields["action"]:
        raise _damaged(where, f"{fields['action']!r} does not describe `before` and `after`")
    return change


def _fields(value: object, where: str, names: set[str]) -> dict[str, Any]:
    """Return a JSON object, which must have exactly these fields."""
    if not isinstance(value, dict) or value.keys() != names:
        raise _damaged(where, f"expected an object with exactly {', '.join(sorted(names))}")
    return value


def _damaged(where: str, problem: str) -> UsageError:
    return UsageError(f"the saved plan is damaged: {problem}", where=where, fix="make the plan again with --plan-out")
