"""Say how a run went, as data with a fixed shape and as a page of text for readers without a browser.

    record = load_record(run_dir)
    content = summarise(record, diagnose(record))
    print(render(content))

docs/run-reports.md lists the fields.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from areal.infra.diagnosis.learning import MIN_STEPS, standard_error
from areal.infra.diagnosis.machinery import place, shorten
from areal.infra.diagnosis.record import first_quarter, last_quarter
from areal.infra.metrics import names
from areal.infra.metrics.logger import ROLLOUTS_FILE, series
from areal.infra.metrics.pictures import named_images
from areal.infra.metrics.report import format_duration
from areal.reward.components import describe_reward

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.infra.diagnosis.record import Points, RunRecord
    from areal.infra.diagnosis.rules import Finding

METRICS: Final[dict[str, str]] = {
    names.REWARD_MEAN: "reward",
    names.REWARD_STD: "reward, deviation",
    names.ZERO_VARIANCE_SHARE: "groups of equal rewards",
    names.EVAL_LOSS: "evaluation loss",
    names.ACCURACY: "accuracy on pairs",
    names.EVAL_ACCURACY: "evaluation accuracy",
    names.LENGTH_MEAN: "length",
    names.TRUNCATED_FRACTION: "truncated answers",
    names.LOSS: "loss",
    names.KL: "KL",
    names.ENTROPY: "entropy",
    names.CLIP_FRACTION: "clipped tokens",
    names.STALENESS_MEAN: "staleness, mean",
    names.STALENESS_MAX: "staleness, most",
    names.MISMATCH_MEAN: "sampler mismatch",
    names.GRAD_NORM: "gradient norm",
    names.LEARNING_RATE: "learning rate",
    names.TOKENS_PER_SECOND: "tokens per second",
}
"""Metrics of a summary and what they are called there; those that a run lacks are left out."""

_PLACES: Final = {"first": 0.0, "quarter": 0.25, "half": 0.5, "last": 1.0}
_EXAMPLES: Final = 3
_WAIT: Final = "rollout_wait"


def summarise(record: RunRecord, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the content of a report as plain values."""
    labels = {metric: f"evaluation of {name}" for metric, name in record.eval_scores().items()} | METRICS
    metrics = {name: _course(record, name, label) for name, label in labels.items() if series(record.steps, name)}
    return {
        "run": describe_run(record),
        "metrics": metrics,
        "time": {"shares": record.shares_of_time(), "seconds_per_step": _finite(record.late(names.TIME_STEP))},
        "faults": _faults(record),
        "dropped_prompts": record.totals(names.DROPPED_PREFIX),
        "skipped_steps": int(record.total(names.SKIPPED_STEPS)),
        "failed_evaluations": int(record.total(names.EVAL_FAILED)),
        "checkpoints": [asdict(checkpoint) for checkpoint in record.checkpoints],
        "final_model": (record.directory / "final").is_dir(),
        "images": _images(record),
        "signs": [
            {
                "rule": one.name,
                "sign": one.rule.sign,
                "when": one.rule.when,
                "evidence": one.grounds.text,
                "numbers": one.grounds.numbers,
            }
            for one in findings
        ],
    }


def describe_run(record: RunRecord) -> dict[str, Any]:
    """Return which run it is and how far it came."""
    times = [values["time"] for values in record.steps.values() if "time" in values]
    begin = min([*times, *(line.time for line in record.starts if line.time)], default=0.0)
    end = record.end
    return {
        "directory": str(record.directory),
        "kind": record.setting("kind", ""),
        "name": f"{record.setting('experiment_name', '')}/{record.setting('trial_name', '')}".strip("/"),
        "model": record.setting("model.path") or record.setting("model.init.model_type", ""),
        "train_dataset": record.setting("train_dataset.name", "") or ", ".join(record.setting("sources", {}) or {}),
        "reward": describe_reward(record.setting("reward", "")),
        "objective": record.setting("objective.preset", ""),
        "seed": record.setting("seed"),
        "state": record.state,
        "problem": record.problem,
        "exit_code": None if end is None else end.fields.get("exit_code"),
        "steps": record.last_step,
        "total_steps": record.total_steps,
        "seconds": max(0.0, record.last_time - begin) if begin else 0.0,
        "seconds_in_steps": record.total(names.TIME_STEP),
        "last_written_unix": record.last_time,
        "starts": [
            {"unix": line.time, "pid": line.fields.get("pid"), "host": line.fields.get("host")}
            for line in record.starts
        ],
        "attempts": [
            {"number": one.number, "first_step": one.first_step, "unix": one.time, "run": one.run_id}
            for one in record.attempts
        ],
        "without": [
            what
            for what, found in (("config.yaml", record.config), ("log.jsonl", record.lines), ("metrics", record.steps))
            if not found
        ],
    }


def _course(record: RunRecord, name: str, label: str) -> dict[str, Any]:
    """Return values at four places, and how the last quarter compares with the first."""
    points, every = record.values(name), series(record.steps, name)
    values = [value for _, value in points]
    early, late = record.early(name), record.late(name)
    return {
        "label": label,
        **{where: _around(points, share) for where, share in _PLACES.items()},
        "early": _finite(early),
        "late": _finite(late),
        "trend": _trend(points, late - early),
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
        "count": len(every),
        "not_finite": len(every) - len(values),
    }


def _around(points: Points, share: float) -> float | None:
    """Mean over the twentieth of the points that lies around a place: single steps say little."""
    if not points:
        return None
    width = max(1, len(points) // 20)
    start = min(max(0, round(share * (len(points) - 1)) - width // 2), len(points) - width)
    chosen = [value for _, value in points[start : start + width]]
    return sum(chosen) / len(chosen)


def _trend(points: Points, change: float) -> str:
    """Return "rises" or "falls" where the quarters differ by more than three standard errors, else "flat"; "" for few
    points.
    """
    if len(first_quarter(points)) + len(last_quarter(points)) > len(points) or len(points) < MIN_STEPS:
        return ""
    if abs(change) <= 3 * standard_error(points):
        return "flat"
    return "rises" if change > 0 else "falls"


def _faults(record: RunRecord) -> list[dict[str, Any]]:
    counts = record.totals(names.FAULT_PREFIX)
    for fault in record.faults:  # of a run that ended before its first batch
        counts.setdefault(fault["kind"], 0.0)
    return [
        {
            "kind": kind,
            "count": max(int(count), len(noted)),
            "examples": [dict(fault) for fault in noted[:_EXAMPLES]],
        }
        for kind, count in counts.items()
        for noted in [[fault for fault in record.faults if fault["kind"] == kind]]
    ]


def _images(record: RunRecord) -> dict[str, Any]:
    """Count the images that kept rollouts show, and describe the newest."""
    named = named_images(record.directory / ROLLOUTS_FILE)
    return {"distinct": len(named), "newest": named[:_EXAMPLES]}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def render(content: Mapping[str, Any]) -> str:
    """Return a summary as text of at most about 80 lines."""
    return "\n".join(
        [*_head(content), "", *_table(content["metrics"]), "", *_tail(content), "", *_signs(content["signs"])]
    )


def head_line(run: Mapping[str, Any]) -> str:
    """Return the state of a run in one line."""
    words = {
        "finished": "finished",
        "stopped": f"stopped by a signal (exit code {run['exit_code']}); the same command continues it",
        "failed": f"failed (exit code {run['exit_code']}): {shorten(run['problem'])}",
        "killed": "killed: its process is gone and wrote no end",
        "running": "running",
        "unknown": "unknown: its end is not recorded here",
    }
    return words[run["state"]]


def _head(content: Mapping[str, Any]) -> Iterator[str]:
    run = content["run"]
    of = "" if run["total_steps"] is None else f" of {run['total_steps']}"
    facts = {
        "kind": run["kind"],
        "model": run["model"],
        "dataset": run["train_dataset"],
        "reward": run["reward"],
        "objective": run["objective"] if run["kind"] == "rl" else "",
        "seed": run["seed"],
    }
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run["last_written_unix"]))
    yield f"run          {run['name'] or run['directory']}  ({run['directory']})"
    yield "config       " + (", ".join(f"{k} {v}" for k, v in facts.items() if v not in ("", None)) or "not recorded")
    yield f"state        {head_line(run)}"
    yield (
        f"steps        {run['steps']}{of} in {format_duration(run['seconds'])}, last written {written}"
        + (f", {len(run['starts'])} starts" if len(run["starts"]) > 1 else "")
    )
    if len(run["attempts"]) > 1:
        begins = ", ".join(f"{one['number']} from step {one['first_step']}" for one in run["attempts"])
        yield f"attempts     {begins}; what an older one logged of steps that were done again is in the files"
    folders = [f"step {one['step']}{'' if one['whole'] else ' (unfinished)'}" for one in content["checkpoints"]]
    yield f"checkpoints  {', '.join(folders) or 'none'}; final model {'written' if content['final_model'] else 'none'}"


def _table(metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not metrics:
        yield "no metrics yet"
        return
    yield f"{'':<24}{'first':>10}{'25 %':>10}{'50 %':>10}{'last':>10}{'lowest':>10}{'highest':>10}  trend"
    for one in metrics.values():
        values = (one[key] for key in (*_PLACES, "lowest", "highest"))
        cells = "".join(f"{'-':>10}" if value is None else f"{value:>10.4g}" for value in values)
        broken = f"  {one['not_finite']} not finite" if one["not_finite"] else ""
        yield f"{one['label']:<24}{cells}  {one['trend']}{broken}".rstrip()


def _tail(content: Mapping[str, Any]) -> Iterator[str]:
    shares = content["time"]["shares"]
    if shares:
        seconds = content["time"]["seconds_per_step"]
        split = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.005)
        per_step = "" if seconds is None else f"{seconds:.3g} s per step: "
        waits = f"; the trainer waits for rollouts {shares[_WAIT]:.0%} of the time" if _WAIT in shares else ""
        yield f"time         {per_step}{split}{waits}"
    counts = [f"{one['kind']} {one['count']}" for one in content["faults"]]
    yield f"faults       {', '.join(counts) or 'none'}"
    for one in content["faults"]:
        for fault in one["examples"]:
            yield f"             {one['kind']} at {place(fault)}: {shorten(fault['message'])}"
    dropped = content["dropped_prompts"]
    yield f"dropped      {', '.join(f'{reason} {number:.0f}' for reason, number in dropped.items()) or 'no prompts'}"
    images = content["images"]
    if images["distinct"]:
        newest = (
            f"{one['digest'][:12]} ({one['height']} x {one['width']} pixels, {one['tokens']} tokens)"
            for one in images["newest"]
        )
        yield f"images       {images['distinct']} in kept rollouts, the newest {', '.join(newest)}"
    yield f"skipped      {content['skipped_steps']} optimizer steps, {content['failed_evaluations']} evaluations failed"


def _signs(signs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not signs:
        yield "signs        none"
        return
    yield "signs"
    for sign in signs:
        yield f"  {sign['rule']}: {sign['sign']}"
        yield f"    {sign['evidence']}"
        yield f"    rule: {sign['when']}"
