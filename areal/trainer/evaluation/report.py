"""Put the results of an evaluation into numbers with intervals, compare two of them, and write the files."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.infra.metrics.jsonl import strict
from areal.trainer.evaluation.page import render_page
from areal.trainer.evaluation.statistics import compare, estimate
from areal.trainer.evaluation.store import collect, read_manifest, read_samples
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from areal.trainer.evaluation.samples import SetResult

REPORT: Final = "report.json"
PAGE: Final = "report.html"
_SAME: Final = ("row_fingerprint", "reward")
"""Settings that two evaluations must share for their rewards to be comparable."""


def build_report(results: Sequence[SetResult], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return target, sets with their scores and intervals, and what was asked for; JSON values."""
    seed = int(manifest["seed"])
    return {
        **manifest,
        "sets": {result.name: _describe(result, manifest["sets"][result.name], seed) for result in results},
    }


def compare_with(folder: Path, other: Path) -> dict[str, Any]:
    """Compare a finished evaluation with another one of the same rows: `folder` minus `other`, set by set.

    Rows are those that both have, metrics likewise; a mean over other numbers of samples is compared as avg.
    Raises ConfigError when they share no set or a set has other rows or another reward, CheckpointError when one of
    the folders holds no finished evaluation.
    """
    mine, theirs = read_manifest(folder), read_manifest(other)
    shared = [name for name in mine["sets"] if name in theirs["sets"]]
    if not shared:
        raise ConfigError(
            f"{folder} and {other} share no set: {', '.join(mine['sets'])} against {', '.join(theirs['sets'])}",
            where=str(other),
            fix="evaluate both on the same sets",
        )
    sets = {}
    for name in shared:
        first, second = theirs["sets"][name], mine["sets"][name]
        for key in _SAME:
            if first[key] != second[key]:
                raise ConfigError(
                    f"set {name} differs in {key}: {first[key]!r} in {other}, {second[key]!r} in {folder}",
                    where=str(other),
                    fix="evaluate both with the same configuration",
                )
        sets[name] = _compared(_stored(folder, name, second), _stored(other, name, first), int(mine["seed"]))
    return {"with": theirs["target"], "folder": str(other), "sets": sets}


def write_reports(folder: Path, report: Mapping[str, Any], results: Sequence[SetResult]) -> None:
    """Write report.json and report.html, each all at once."""
    atomic_write(folder / REPORT, json.dumps(strict(report), indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    atomic_write(folder / PAGE, render_page(report, results))


def add_comparison(folder: Path, other: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return `report` of `folder` with a comparison, and write its files again."""
    extended = {**report, "comparison": compare_with(folder, other)}
    manifest = read_manifest(folder)
    write_reports(folder, extended, [_stored(folder, name, manifest["sets"][name]) for name in report["sets"]])
    return extended


def render_text(report: Mapping[str, Any]) -> str:
    """Return the scores as a table for people."""
    lines = [f"{report['target']}: seed {report['seed']}, engine {report['engine']}"]
    for name, entry in report["sets"].items():
        lost = f", {entry['lost']} samples lost" if entry["lost"] else ""
        lines += ["", f"{name}: {entry['rows']} rows, {entry['samples']} samples each{lost}"]
        for metric, found in entry["metrics"].items():
            rows = f"  ({found['rows']} rows)" if found["rows"] != entry["rows"] else ""
            lines.append(f"  {metric:<10} {found['mean']:.4f}  95 % {_range(found)}{rows}")
        lines.append(f"  {'length':<10} {entry['length']:.1f} tokens, {entry['truncated_fraction']:.1%} truncated")
        for part, use in entry["component_uses"].items():
            calls = f"{use['calls']} calls, {use['failures']} failed, {use['seconds_per_call']:.3g} s each"
            lines.append(f"  reward {part}: {calls}")
    if "comparison" in report:
        lines += ["", f"compared with {report['comparison']['with']}, on the same rows"]
        for name, metrics in report["comparison"]["sets"].items():
            lines += [_difference(name, metric, found) for metric, found in metrics.items()]
    return "\n".join(lines)


def _difference(name: str, metric: str, found: Mapping[str, Any]) -> str:
    means = f"{found['first']:.4f} -> {found['second']:.4f}  {found['difference']:+.4f}"
    tests = f"p {found['p_permutation']:.3g} (permutation), {found['p_sign']:.3g} (sign)"
    rows = f"{found['better']} rows better, {found['worse']} worse"
    return f"  {name} {metric:<8} {means}  95 % {_range(found)}  {tests}; {rows}"


def _describe(result: SetResult, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    scored = [item for row in result.rows for item in row if item.reward is not None]
    parts = sorted({part for item in scored for part in item.components or {}})
    return {
        **settings,
        "metrics": {name: asdict(estimate(values, seed=seed)) for name, values in result.values.items()},
        "lost": result.lost,
        "first_fault": result.first_fault,
        "length": _mean([item.length for item in scored]),
        "truncated_fraction": _mean([float(item.truncated) for item in scored]),
        "components": {
            part: _mean([(item.components or {})[part] for item in scored if part in (item.components or {})])
            for part in parts
        },
        "component_uses": {
            part: {"calls": use.calls, "failures": use.failures, "seconds_per_call": use.seconds / use.calls}
            for part, use in sorted(result.reward_uses.items())
        },
    }


def _stored(folder: Path, name: str, settings: Mapping[str, Any]) -> SetResult:
    rows, samples = int(settings["rows"]), int(settings["samples"])
    found = read_samples(folder, name, rows=rows, samples=samples)
    if len(found) < rows * samples:
        raise ConfigError(
            f"{folder} has {len(found)} of {rows * samples} samples of set {name}",
            where=str(folder),
            fix="finish that evaluation first: run its command again",
        )
    return collect(name, found, rows=rows, samples=samples, pass_reward=float(settings["pass_reward"]))


def _compared(mine: SetResult, theirs: SetResult, seed: int) -> dict[str, Any]:
    # Means over other numbers of samples are comparable.
    second, first = (
        {"avg" if metric.startswith("avg@") else metric: values for metric, values in result.values.items()}
        for result in (mine, theirs)
    )
    found = {}
    for metric in second:
        if metric in first:
            rows = min(len(first[metric]), len(second[metric]))
            pairs = zip(first[metric][:rows], second[metric][:rows], strict=True)
            if any(not math.isnan(one) and not math.isnan(other) for one, other in pairs):
                found[metric] = asdict(compare(first[metric][:rows], second[metric][:rows], seed=seed))
    return found


def _range(found: Mapping[str, float]) -> str:
    if found["low"] is None or math.isnan(found["low"]):
        return "unknown of one row"
    return f"{found['low']:.4f} .. {found['high']:.4f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
