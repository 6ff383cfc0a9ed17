"""Outcomes of review_history.py: kept in a file between runs, and written as the table of docs/review.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENT = common.ROOT / "docs/review.md"
SUMMED = ("found", "cases", "commits", "changed_lines", "alarms", "right")


def keep(file: Path, name: str, score: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All outcomes by name, with this one added or replaced."""
    scores: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    scores[name] = score
    file.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    return scores


def write_docs(scores: dict[str, dict[str, Any]]) -> None:
    """Replace the table of the page."""
    common.write_docs("review_history", _table(scores), DOCUMENT)


def _table(scores: dict[str, dict[str, Any]]) -> str:
    titles = (
        "history",
        "fixes whose bug was reported when it came in",
        "clean commits, changed lines",
        "reported there, of it right",
        "false alarms per 1,000 lines",
        "median s",
    )
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    lines += [_row(name, score, str(score["median_seconds"])) for name, score in scores.items()]
    lines.append(_row("**all**", {key: sum(score[key] for score in scores.values()) for key in SUMMED}, ""))
    return "\n".join(lines)


def _row(name: str, score: dict[str, Any], seconds: str) -> str:
    rate = 1000 * (score["alarms"] - score["right"]) / max(1, score["changed_lines"])
    cells = (
        name,
        f"{score['found']} of {score['cases']}",
        f"{score['commits']}, {score['changed_lines']}",
        f"{score['alarms']}, {score['right']}",
        f"{rate:.2f}",
        seconds,
    )
    return f"| {' | '.join(cells)} |"
