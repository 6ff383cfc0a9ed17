"""Compare runs: settings that differ, how their metrics went, and what they answered to the same prompts.

    content = compare_runs([Path("runs/math/a"), Path("runs/math/b")])
    content["differences"]       # [{"key": "actor.lr", "values": [1e-6, 3e-6]}]
    write_comparison(content, Path("comparison.html"))

The page is self-contained and as safe as that of one run (`areal.infra.metrics.report`): its tables are HTML, and its
script draws curves from numbers, with smoothing and a logarithmic axis. While runs go on, the page loads itself again
from where it lies, which works for a file as for any web server; whoever writes it keeps writing it.
"""

from __future__ import annotations

import json
import math
from html import escape
from typing import TYPE_CHECKING, Any, Final

from areal.infra.metrics import names
from areal.infra.metrics.jsonl import load_rollouts
from areal.infra.metrics.logger import ROLLOUTS_FILE, read_metrics, series
from areal.infra.metrics.report import CONFIG_FILE, asset, line_style, metrics_file_of, render_page, thin
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_FIRST: Final = (
    names.REWARD_MEAN,
    names.ACCURACY,
    names.LOSS,
    names.EVAL_LOSS,
    names.LENGTH_MEAN,
    names.ENTROPY,
    names.KL,
)
"""Metrics that are shown first, after those of evaluations."""
_LESS_IS_BETTER: Final = (names.LOSS, names.EVAL_LOSS)
_MORE_IS_BETTER: Final = (names.REWARD_MEAN, names.ACCURACY, names.EVAL_ACCURACY)
_SCORES: Final = ("/avg@", "/pass@", "/maj@")
_NAMED: Final = 4
"""Runs that the head of the page names; of more it says how many."""
_PROMPTS: Final = 40
_SAMPLES: Final = 4
_OWN: Final = ("output_dir", "trial_name")
"""Settings that differ between any two runs."""
_NAVIGATION: Final = (
    '<a href="#results">Results</a><a href="#curves">Curves</a><a href="#settings">Settings</a>'
    '<a href="#samples">Samples</a>'
)


def compare_runs(run_dirs: Sequence[Path], going_on: Sequence[bool] = ()) -> dict[str, Any]:
    """Return the comparison as plain data. going_on: which of the runs are not finished.

    Raises UsageError when a directory has no metrics.jsonl.
    """
    steps = [read_metrics(metrics_file_of(run)) for run in run_dirs]
    configs = [_flat(_config(run)) for run in run_dirs]
    shown = _short_names(run_dirs)
    return {
        "runs": [
            {
                "name": shown[index],
                "directory": str(run),
                "steps": max(steps[index], default=0),
                "going_on": bool(going_on and going_on[index]),
            }
            for index, run in enumerate(run_dirs)
        ],
        "differences": [
            {"key": key, "values": [config.get(key) for config in configs]}
            for key in sorted(set().union(*configs))
            if key not in _OWN and len({json.dumps(config.get(key), sort_keys=True) for config in configs}) > 1
        ],
        "metrics": list(_metrics(steps)),
        "prompts": _same_prompts(run_dirs),
        "curves": {
            name: [_points(values, name) for values in steps] for name in _ordered(set().union(*_metric_names(steps)))
        },
    }


def render_comparison(content: Mapping[str, Any]) -> str:
    """Return the tables as text."""
    runs = [run["name"] for run in content["runs"]]
    rows = [["", *runs], ["steps", *(str(run["steps"]) for run in content["runs"])]]
    for one in content["metrics"]:
        rows.append([f"{one['metric']} (last)", *map(_number, one["last"])])
        if one["best"] is not None:
            rows.append([f"{one['metric']} (best)", *map(_number, one["best"])])
    lines = [*_aligned(rows), "", "Settings that differ"]
    differences = [[one["key"], *(_value(value) for value in one["values"])] for one in content["differences"]]
    lines += _aligned(differences) if differences else ["  none"]
    lines += ["", f"{len(content['prompts'])} prompts that all of them answered; the page shows them side by side."]
    return "\n".join(lines)


def write_comparison(content: Mapping[str, Any], output: Path, *, refresh_seconds: int = 0) -> Path:
    """Write the page and return its path. refresh_seconds: how often it loads itself again; 0 never does."""
    names_of_runs = [run["name"] for run in content["runs"]]
    legend = "".join(
        f'<button type="button" class="key" data-run="{index}" aria-pressed="true">'
        f'<i class="swatch {line_style(index)}"></i>{escape(name)}</button>'
        for index, name in enumerate(names_of_runs)
    )
    metric_rows = []
    for one in content["metrics"]:
        metric_rows.append([one["metric"], "last", *map(_number, one["last"])])
        if one["best"] is not None:
            metric_rows.append([one["metric"], "best", *map(_number, one["best"])])
    setting_rows = [[one["key"], *(_value(value) for value in one["values"])] for one in content["differences"]]
    fields = {
        "legend": legend,
        "metrics": _table(["metric", "", *names_of_runs], metric_rows),
        "settings": _table(["setting", *names_of_runs], setting_rows)
        if setting_rows
        else '<p class="note">No setting differs.</p>',
    }
    page = render_page(
        "compare.html",
        fields,
        kind="comparison",
        title=" · ".join(names_of_runs) if len(names_of_runs) <= _NAMED else f"{len(names_of_runs)} runs",
        subtitle=_steps_done(content["runs"]),
        navigation=_NAVIGATION,
        style=asset("report.css") + asset("compare.css"),
        script=asset("compare.js"),
        data={key: content[key] for key in ("runs", "curves", "prompts")},
        refresh_seconds=refresh_seconds,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(output, page)
    return output


def _metrics(steps: Sequence[Mapping[int, Mapping[str, float]]]) -> Iterator[dict[str, Any]]:
    """Yield last and best values of results, which are the metrics that are known to be better one way."""
    for name in _ordered(set().union(*_metric_names(steps))):
        less, more = name in _LESS_IS_BETTER, name in _MORE_IS_BETTER or _is_score(name)
        if not less and not more and name not in _FIRST:
            continue
        curves = [[value for _, value in _points(values, name)] for values in steps]
        choose = min if less else max
        yield {
            "metric": name,
            "last": [curve[-1] if curve else None for curve in curves],
            "best": [choose(curve) if curve else None for curve in curves] if less or more else None,
        }


def _metric_names(steps: Sequence[Mapping[int, Mapping[str, float]]]) -> list[set[str]]:
    return [{name for values in one.values() for name in values if name != "time"} for one in steps]


def _ordered(found: set[str]) -> list[str]:
    first = [name for name in _FIRST if name in found]
    scores = sorted(name for name in found if _is_score(name))
    return [*scores, *first, *sorted(found - {*scores, *first})]


def _is_score(name: str) -> bool:
    return name.startswith("eval/") and any(mark in name for mark in _SCORES)


def _points(steps: Mapping[int, Mapping[str, float]], name: str) -> list[tuple[int, float]]:
    return thin([point for point in series(steps, name) if math.isfinite(point[1])])


def _same_prompts(run_dirs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return prompts that every run has rollouts of, with the newest samples of each."""
    found: list[dict[str, Any]] = []
    for run in run_dirs:
        newest: dict[str, Any] = {}
        for group in load_rollouts(run / ROLLOUTS_FILE).groups:
            if group["samples"] and (prompt := group["samples"][0]["text"].get("prompt")):
                newest[prompt] = group
        found.append(newest)
    common = [prompt for prompt in found[0] if all(prompt in one for one in found)] if found else []
    return [
        {
            "prompt": prompt,
            "runs": [
                {
                    "step": one[prompt]["step"],
                    "samples": [
                        {"reward": sample["reward"], "text": _answer(sample)}
                        for sample in sorted(one[prompt]["samples"], key=lambda each: -each["reward"])[:_SAMPLES]
                    ],
                }
                for one in found
            ],
        }
        for prompt in common[-_PROMPTS:]
    ]


def _answer(sample: Mapping[str, Any]) -> str:
    text = sample["text"].get("completion")
    return text if isinstance(text, str) else "".join(sample.get("pieces") or ())


def _config(run: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return leaves


def _short_names(run_dirs: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as many as tell them apart."""
    parts = [run.resolve().parts for run in run_dirs]
    most = max(map(len, parts), default=1)
    for count in range(1, most + 1):
        shown = ["/".join(one[-count:]) for one in parts]
        if len(set(shown)) == len(shown):
            return shown
    return [f"{'/'.join(one[-2:])} ({index})" for index, one in enumerate(parts, 1)]


def _steps_done(runs: Sequence[Mapping[str, Any]]) -> str:
    if len(runs) <= _NAMED:
        return ", ".join(f"{run['name']}: {run['steps']} steps" for run in runs)
    done = [run["steps"] for run in runs]
    going = sum(run["going_on"] for run in runs)
    span = f"{max(done)} steps each" if min(done) == max(done) else f"{min(done)} to {max(done)} steps"
    return span + (f", {going} of them go on" if going else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _value(value: Any) -> str:
    return "(not set)" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'
