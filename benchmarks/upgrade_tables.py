"""Scores of upgrade_history.py: kept in a file between runs, summed, and written as a table of docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from pathlib import Path

VISIBILITIES = ("visible", "hard", "invisible")


def kept(file: Path) -> list[dict[str, Any]]:
    """Scores of earlier runs."""
    scores: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    return scores


def keep(file: Path, scores: list[dict[str, Any]]) -> None:
    """Add scores; those of the same case and tool are replaced."""
    by_key = {(score["case"], score["tool"]): score for score in [*kept(file), *scores]}
    file.write_text(json.dumps([by_key[key] for key in sorted(by_key)], indent=1))


def summaries(scores: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By tool: recall by visibility, precision, seconds."""
    return {tool: summary([score for score in scores if score["tool"] == tool]) for tool in _tools(scores)}


def summary(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one tool, over all its cases."""
    total: dict[str, list[int]] = {}
    for score in scores:
        for visibility, (found, of) in score["found"].items():
            tally = total.setdefault(visibility, [0, 0])
            tally[0] += found
            tally[1] += of
    right = sum(score["right"] for score in scores)
    unexplained = sum(len(score["unexplained"]) for score in scores)
    reported = right + unexplained + sum(len(score["wrong"]) for score in scores)
    return {
        "recall": {visibility: f"{found}/{of}" for visibility, (found, of) in sorted(total.items())},
        "right_kind": sum(score["right_kind"] for score in scores),
        "breaking_precision": f"{right}/{reported}",
        "unexplained": unexplained,
        "seconds": round(sum(score["seconds"] for score in scores), 1),
        "cpu_seconds": round(sum(score["cpu_seconds"] for score in scores), 1),
        "failed": sum(bool(score["error"]) for score in scores),
    }


def write_docs(scores: list[dict[str, Any]]) -> None:
    """Replace the table of the page."""
    common.write_docs("upgrade_history", _table(scores))


def _table(scores: list[dict[str, Any]]) -> str:
    tools = _tools(scores)
    lines = [
        f"| case | {' | '.join(f'{tool}: found, right of reported, s' for tool in tools)} |",
        f"| --- |{' --- |' * len(tools)}",
    ]
    by_key = {(score["case"], score["tool"]): score for score in scores}
    for case in sorted({score["case"] for score in scores}):
        cells = [_cell(by_key[case, tool]) if (case, tool) in by_key else "" for tool in tools]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    totals = summaries(scores)
    for title, key in (("right of reported breaking", "breaking_precision"), ("processor seconds", "cpu_seconds")):
        lines.append(f"| **{title}** | {' | '.join(f'**{totals[tool][key]}**' for tool in tools)} |")
    for visibility in VISIBILITIES:
        shares = [totals[tool]["recall"].get(visibility, "") for tool in tools]
        lines.append(f"| **found, {visibility}** | {' | '.join(f'**{share}**' for share in shares)} |")
    load = "/".join(f"{value:.0f}" for value in os.getloadavg())
    lines += [
        "",
        f"Seconds are processor seconds of all processes. {os.cpu_count()} cores, load average {load} while it ran, "
        f"Python {platform.python_version()}.",
    ]
    return "\n".join(lines)


def _cell(score: dict[str, Any]) -> str:
    if score["error"]:
        return "failed"
    found = sum(found for found, _of in score["found"].values())
    of = sum(of for _found, of in score["found"].values())
    reported = score["right"] + len(score["wrong"]) + len(score["unexplained"])
    return f"{found}/{of}, {score['right']}/{reported}, {score['cpu_seconds']:.1f}"


def _tools(scores: list[dict[str, Any]]) -> list[str]:
    return sorted({score["tool"] for score in scores})
