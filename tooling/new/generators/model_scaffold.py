"""What is written of a model of which only a config is known: findings, and an entry that refuses to load."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCAFFOLD: Final = "scaffold"
"""Status of such a report."""
_MODEL_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_MOST: Final = 40
"""Lines of a table in the findings."""


def scaffold_report(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report of what an analysis without code has answered. Raises UsageError for a type whose name cannot
    stand in a registry."""
    config = dict(answer.get("config") or {})
    if not _MODEL_TYPE.fullmatch(str(config.get("model_type"))):
        raise UsageError(
            f"{_plain(config.get('model_type'))} cannot be the name of a model_type",
            where="--from",
            fix="expected ASCII letters, digits, '_', '-' and '.'",
        )
    architectures = [str(each) for each in config.get("architectures") or ()]
    return {
        "status": SCAFFOLD,
        "model_type": str(config["model_type"]),
        "architecture": architectures[0] if architectures else str(config["model_type"]),
        "text_type": answer.get("text_type"),
        "nearest": [dict(each) for each in answer.get("nearest") or ()],
        "tensors": answer.get("tensors"),
        "reference": {},
    }


def scaffold_pieces(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template shows: a sentence, and the findings as lines of Markdown."""
    nearest = [str(each["model_type"]) for each in report["nearest"]]
    said = f"nearest proven families: {', '.join(nearest)}" if nearest else "no proven family is near"
    return {
        "title": _plain(report["architecture"]),
        "sentence": f"SCAFFOLD of {_plain(report['model_type'])}, made from a config alone; {said}.",
        "summary": "a scaffold, made from a config alone",
        "scaffold": _findings(report),
    }


def _findings(report: Mapping[str, Any]) -> list[str]:
    lines = [f"# {_plain(report['model_type'])}: what its config says", ""]
    if report["text_type"]:
        lines += [f"Its text model is `{_plain(report['text_type'])}`, which the families are compared with.", ""]
    for near in report["nearest"]:
        rows = [[each["field"], each["theirs"], each["ours"]] for each in near["differences"]]
        lines += [f"## Nearest: {_plain(near['model_type'])}", "", f"{_plain(near['reason'])}.", ""]
        lines += _table(["field", "here", "there by default"], rows)
    tensors = report["tensors"]
    lines += ["## Tensors", ""]
    if tensors is None:
        return [*lines, "No index of tensors was beside the config."]
    lines += [f"{tensors['listed']} are listed, of {tensors['layers']} layers.", ""]
    lines += _table(["other parts"], [[each] for each in tensors["other_parts"]])
    lines += _table(["without a place in the nearest family"], [[each] for each in tensors["without_place"]])
    return lines[:-1] if lines[-1] == "" else lines


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    shown = [f"| {' | '.join(f'`{_plain(cell)}`' for cell in row)} |" for row in rows[:_MOST]]
    more = [f"| and {len(rows) - _MOST} more |{' |' * (len(head) - 1)}"] if len(rows) > _MOST else []
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *shown, *more, ""]


def _plain(value: Any) -> str:
    """Return a text of a stranger for a table of Markdown and a docstring: printable ASCII in one line."""
    text = " ".join(str(value).split()).encode("ascii", "replace").decode()
    kept = "".join(each if each.isprintable() and each not in '`|\\"' else "?" for each in text)
    return kept if len(kept) <= 120 else f"{kept[:117]}..."
