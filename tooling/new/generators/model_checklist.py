"""A report for people: the checklist of an engineer who ports a model, each line with its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.cli.report import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_DIFFERENCES: Final = 12


def checklist(report: Mapping[str, Any]) -> str:
    """What was found and how it is known; what becomes of each config field; what is missing."""
    parts = [
        f"{report['model_type']} ({report['architecture']}, {report.get('source', 'unknown source')}): "
        f"{report['status']}"
    ]
    evidence = report.get("evidence") or ()
    if evidence:
        rows = [
            (str(item["feature"]), _short(item["value"]), str(item["source"]), _short(item["detail"]), _margin(item))
            for item in evidence
        ]
        parts += ["", "features (what, value, known from, where, margin over the next best explanation):"]
        parts.append(aligned(rows))
    fields = report.get("fields") or ()
    if fields:
        parts += ["", "config fields:", aligned([_field_row(use) for use in fields])]
    variants = report.get("variants") or ()
    if variants:
        measured = [
            (str(item["name"]), f"{item.get('parity', 0.0):.1e}", f"of {item.get('tolerance', 0.0):.1e}")
            for item in variants
        ]
        parts += ["", "proven configs (largest difference of a logit):", aligned(measured)]
    if report.get("missing"):
        parts += ["", missing_features(report)]
    parts += [f"\n{line}" for line in differences(report)]
    seconds = report.get("seconds") or {}
    if seconds:
        parts += ["", "seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())]
    return "\n".join(parts)


def missing_features(report: Mapping[str, Any]) -> str:
    """What areal cannot express, where it is, and how that is known."""
    rows = [(str(item["feature"]), str(item["where"]), _short(item["detail"], 160)) for item in report["missing"]]
    return "not supported (what, where, evidence):\n" + aligned(rows)


def differences(report: Mapping[str, Any]) -> tuple[str, ...]:
    """How the config differs from those of the nearest families, one text each."""
    found = []
    for near in report.get("nearest") or ():
        rows = [
            (f"  {item['field']}", f"theirs {_short(item['theirs'])}", f"ours {_short(item['ours'])}")
            for item in near["differences"][:_MAX_DIFFERENCES]
        ]
        more = len(near["differences"]) - len(rows)
        text = aligned(rows) if rows else "  none"
        found.append(f"differences to {near['model_type']}:\n{text}{f'{chr(10)}  and {more} more' if more else ''}")
    return tuple(found)


def _field_row(use: Mapping[str, Any]) -> tuple[str, str, str]:
    if use["status"] == "fixed":
        detail = "only " + ", ".join(repr(value) for value in use.get("allowed") or ())
    else:
        detail = str(use.get("reason") or "")
    return str(use["name"]), str(use["status"]), detail


def _short(value: Any, limit: int = 60) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _margin(item: Mapping[str, Any]) -> str:
    return "" if item.get("margin") is None else f"{item['margin']:.0f}x"
