"""The report of an evaluation as one self-contained HTML page: no network, no script, safe whatever models wrote."""

from __future__ import annotations

import base64
import hashlib
import math
from html import escape
from typing import TYPE_CHECKING, Any, Final

from areal.reward.components import describe_reward

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.trainer.evaluation.samples import EvalSample, SetResult

_ROWS: Final = 40
"""Rows of each set that are shown, spread evenly; samples.jsonl has all."""
_SAMPLES: Final = 4
_CHARACTERS: Final = 4000
_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #8884; }
td.number { font-variant-numeric: tabular-nums; text-align: right; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .6rem; margin: .3rem 0; }
details { margin: .2rem 0; } summary { cursor: pointer; }
.bar { background: #8883; display: inline-block; height: .6rem; width: 12rem; position: relative; }
.note { opacity: .75; }
"""


def render_page(report: Mapping[str, Any], results: Sequence[SetResult]) -> str:
    """Return the page. Everything that came from a model or a dataset is escaped."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = [
        f"<h1>{escape(str(report['target']))}</h1>",
        f'<p class="note">seed {report["seed"]}, engine {escape(str(report["engine"]))}. Intervals cover 95 % of a '
        f"bootstrap over rows.</p>",
    ]
    if "comparison" in report:
        body += _comparison(report["comparison"])
    for result in results:
        body += _scores(result.name, report["sets"][result.name])
        body += _samples(result)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(str(report['target']))}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _scores(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>{escape(name)}</h2>"
    lost = f", {entry['lost']} samples lost, the first: {entry['first_fault']}" if entry["lost"] else ""
    reward = describe_reward(entry["reward"])
    facts = f"{entry['rows']} rows, {entry['samples']} samples each{lost}; reward {reward}; mean length "
    facts += f"{entry['length']:.1f} tokens, {entry['truncated_fraction']:.1%} truncated"
    yield f'<p class="note">{escape(facts)}</p>'
    rows = [(metric, found["mean"], _interval(found), found["rows"]) for metric, found in entry["metrics"].items()]
    yield _table(("metric", "mean", "95 % interval", "rows"), rows)
    if entry["components"]:
        yield _table(("part of the reward", "mean"), list(entry["components"].items()))
    if entry["component_uses"]:
        uses = [(part, *use.values()) for part, use in entry["component_uses"].items()]
        yield _table(("part of the reward", "calls", "failed", "seconds per call"), uses)


def _comparison(comparison: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>Compared with {escape(str(comparison['with']))}</h2>"
    head = (
        "set",
        "metric",
        "other",
        "this",
        "difference",
        "95 % interval",
        "p, permutation",
        "p, sign",
        "better",
        "worse",
    )
    rows = [
        (
            name, metric, found["first"], found["second"], found["difference"], _interval(found),
            found["p_permutation"], found["p_sign"], found["better"], found["worse"],
        )
        for name, metrics in comparison["sets"].items()
        for metric, found in metrics.items()
    ]  # fmt: skip
    yield _table(head, rows)


def _samples(result: SetResult) -> Iterator[str]:
    count = len(result.rows)
    shown = sorted({index * count // min(count, _ROWS) for index in range(min(count, _ROWS))})
    yield f"<h3>Samples</h3><p class='note'>{len(shown)} of {count} rows; samples.jsonl has all.</p>"
    for index in shown:
        row = result.rows[index]
        reward = result.rewards[index]
        score = "lost" if reward is None else f"mean reward {reward:.3g}"
        prompt = next((item.prompt for item in row if item.prompt), "")
        yield f"<details><summary>row {index}: {score}</summary><pre>{_short(prompt)}</pre>"
        for item in row[:_SAMPLES]:
            yield f"<div>{escape(_headline(item))}</div><pre>{_short(item.completion or item.fault or '')}</pre>"
        yield "</details>"


def _headline(item: EvalSample) -> str:
    if item.reward is None:
        return f"sample {item.sample}: lost"
    cut = ", truncated" if item.truncated else ""
    vote = "abstains" if item.answer is None else f"answer {item.answer[:80]}"
    return f"sample {item.sample}: reward {item.reward:.3g}, {vote}, {item.length} tokens{cut}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{"" if math.isnan(value) else f"{value:.4g}"}</td>'
    kind = ' class="number"' if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def _interval(found: Mapping[str, float]) -> str:
    return "" if math.isnan(found["low"]) else f"{found['low']:.4f} .. {found['high']:.4f}"


def _short(text: str) -> str:
    cut = f" ... ({len(text):,} characters)" if len(text) > _CHARACTERS else ""
    return escape(text[:_CHARACTERS] + cut)
