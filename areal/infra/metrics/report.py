"""Write one self-contained HTML page about a run: no network, no dependencies, safe although models wrote its text.

Everything that came from a run reaches the page in one of two ways: escaped HTML, or a JSON block whose "<", ">" and
"&" are written as escapes and that the script only ever shows through `textContent`; pictures are data URIs of PNG or
JPEG, which nothing is loaded for. A content security policy allows the page's own script and style by hash and such
pictures, if there are any, and nothing else.

Charts are SVG text, drawn once, here, so that the page shows its curves without scripts; `Chart.hover` is what the
script (`assets/readout.js`) needs to show values under the pointer, or at a cursor that keys move. Colours and fonts
come from the page's style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import time
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from areal.api import UsageError
from areal.infra.metrics import names
from areal.infra.metrics.jsonl import load_rollouts, strict
from areal.infra.metrics.logger import METRICS_FILE, ROLLOUTS_FILE, read_metrics, series
from areal.infra.metrics.pictures import PICTURES_FOLDER, load_pictures
from areal.infra.metrics.samples import component_means
from areal.infra.metrics.windows import PROFILE_FOLDER, TRACE_FOLDER
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    Steps = Mapping[int, Mapping[str, float]]


CONFIG_FILE: Final = "config.yaml"
"""Where the trainer leaves the resolved configuration; shown as it is when present."""
_NAVIGATION: Final = '<a href="#curves">Curves</a><a href="#rollouts">Rollouts</a><a href="#config">Configuration</a>'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Which metrics share a chart: metric name to label."""

    title: str
    lines: Mapping[str, str]
    hint: str
    band: str | None = None
    """Metric that is the half-width of a band around the first line."""


_PANELS: Final[tuple[_Panel, ...]] = (
    _Panel(
        title="Reward",
        lines={names.REWARD_MEAN: "training"},
        band=names.REWARD_STD,
        hint="mean reward; the band is one standard deviation of the training samples",
    ),
    _Panel(
        title="Accuracy on pairs",
        lines={names.ACCURACY: "training", names.EVAL_ACCURACY: "evaluation"},
        hint="share of pairs whose preferred answer is ahead; a tie counts half",
    ),
    _Panel(
        title="Margin",
        lines={names.MARGIN: "training", names.EVAL_MARGIN: "evaluation"},
        hint="mean lead of the preferred answer over the other one, in units of reward",
    ),
    _Panel(
        title="Length", lines={names.LENGTH_MEAN: "mean", names.LENGTH_MAX: "longest"}, hint="sampled tokens per answer"
    ),
    _Panel(
        title="Entropy",
        lines={names.ENTROPY: "mean"},
        hint="nats per token; near zero means that exploration has ended",
    ),
    _Panel(
        title="KL",
        lines={names.KL: "mean"},
        hint="distance per token to the reference, or without one to the policy that sampled",
    ),
    _Panel(
        title="Clip fraction",
        lines={names.CLIP_FRACTION: "clipped", names.TRUNCATED_FRACTION: "truncated answers"},
        hint="share of tokens whose gradient was clipped, and of answers cut by the token budget",
    ),
    _Panel(
        title="Staleness",
        lines={names.STALENESS_MEAN: "mean", names.STALENESS_MAX: "largest"},
        hint="weight versions between sampling a token and training on it",
    ),
    _Panel(
        title="Engine mismatch",
        lines={names.MISMATCH_MEAN: "mean |Δ log p|", names.MISMATCH_MAX: "largest |Δ log p|"},
        hint="sampling engine against trainer on the same tokens; growth here precedes collapse",
    ),
    _Panel(
        title="Loss",
        lines={names.LOSS: "training", names.EVAL_LOSS: "evaluation"},
        hint="in RL its value says little: it is near zero by construction",
    ),
    _Panel(title="Gradient norm", lines={names.GRAD_NORM: "before clipping"}, hint="gaps are skipped steps"),
    _Panel(title="Learning rate", lines={names.LEARNING_RATE: "learning rate"}, hint="after warm-up and schedule"),
    _Panel(
        title="Throughput",
        lines={names.TOKENS_PER_SECOND: "tokens per second"},
        hint="per second of wall time: generated tokens in RL, trained tokens in SFT",
    ),
)


def write_report(run_dir: Path, output: Path, attempt: int | None = None) -> Path:
    """Write the page about `run_dir` to `output` and return its path; an existing page is replaced all at once.

    attempt: show steps and rollouts as this attempt left them; None shows the newest.

    Raises UsageError when `run_dir` has no metrics.jsonl, OSError when `output` cannot be written.
    """
    steps = read_metrics(metrics_file_of(run_dir), attempt)
    rollouts = load_rollouts(run_dir / ROLLOUTS_FILE, attempt)
    pictures, pictures_note = _pictures(run_dir, rollouts.groups)
    charts, other = _charts(steps)
    config = run_dir / CONFIG_FILE
    recordings = ""
    if any((run_dir / folder).is_dir() for folder in (TRACE_FOLDER, PROFILE_FOLDER)):
        from areal.infra.metrics.recordings import find_recordings, recordings_section

        recordings = recordings_section(find_recordings(run_dir), output)
    section = ""
    if config.is_file():
        text = escape(config.read_text(encoding="utf-8", errors="replace"))
        body = f"<details><summary>{CONFIG_FILE}</summary><pre>{text}</pre></details>"
        section = f'<section id="config"><h2>Configuration</h2>{body}</section>'
    fields = {
        "tiles": "".join(_tiles(steps)),
        "charts": "".join(_card(index, panel, chart) for index, (panel, chart) in enumerate(charts))
        or '<p class="empty">No step has been logged yet.</p>',
        "other": _other_section(other, first=len(charts)),
        "rollouts_note": escape(f"{rollouts.note} {pictures_note}".strip()),
        "browser_state": "" if rollouts.groups else " hidden",
        "recordings": recordings,
        "config": section,
    }
    page = render_page(
        "report.html",
        fields,
        kind="report",
        title="/".join(run_dir.resolve().parts[-2:]),
        subtitle=_subtitle(steps) + ("" if attempt is None else f" · as attempt {attempt} left them"),
        navigation=_NAVIGATION + ('<a href="#recordings">Traces</a>' if recordings else ""),
        style=asset("report.css"),
        script=asset("report.js"),
        data={
            "charts": [chart.hover for _, chart in [*charts, *other]],
            "groups": rollouts.groups,
            "pictures": pictures,
        },
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(output, page)
    return output


def _pictures(run_dir: Path, groups: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], str]:
    """Return pictures of the images of groups, the newest groups' first, and what the reader is to know of them."""
    named = [image["digest"] for group in reversed(groups) for sample in group["samples"] for image in sample["images"]]
    found = load_pictures(run_dir / PICTURES_FOLDER, map(str, named))
    count = len(set(named))
    if len(found) == count:
        return found, ""
    return found, f"{len(found)} of their {count} images are shown, all have their digest (metrics.pictures)."


def metrics_file_of(run_dir: Path) -> Path:
    """metrics.jsonl of a run. Raises UsageError when the folder has none."""
    metrics_file = run_dir / METRICS_FILE
    if not metrics_file.is_file():
        inner = sorted(path.parent for path in run_dir.glob(f"*/{METRICS_FILE}"))
        near = f"; {', '.join(map(str, inner[:4]))} {'have' if len(inner) > 1 else 'has'} one" if inner else ""
        raise UsageError(
            f"{run_dir} holds no {METRICS_FILE}; expected the directory of a run, such as runs/<experiment>/<trial>"
            f"{near}",
            where=str(run_dir),
            fix=f"name {inner[0]}" if inner else "name the directory of a run (output_dir of its configuration)",
        )
    return metrics_file


def render_page(
    template: str,
    fields: Mapping[str, str],
    *,
    kind: str,
    title: str,
    subtitle: str,
    navigation: str,
    style: str,
    script: str,
    data: Mapping[str, Any],
    refresh_seconds: int = 0,
) -> str:
    """Return a page: the frame of all pages around a template of its main part. `fields` and `navigation` are HTML.

    script: runs after `assets/readout.js`. data: what it reads. refresh_seconds: how often the page loads itself again;
    0 never does. Only a page whose data have `pictures` may show images, those that it holds itself.
    """
    script = asset("readout.js") + script
    images = "; img-src data:" if data.get("pictures") else ""
    frame = {
        "policy": (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
            f"form-action 'none'{images}"
        ),
        "refresh": f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else "",
        "kind": kind,
        "title": escape(title),
        "subtitle": escape(subtitle),
        "navigation": navigation,
        "style": style,
        "main": _filled(template, fields),
        "data": embed_json(data),
        "script": script,
    }
    return _filled("page.html", frame)


def _filled(template: str, fields: Mapping[str, str]) -> str:
    # One pass over the template: text that is inserted is never searched for further fields.
    pieces = asset(template).split("{{")
    rest = [piece.partition("}}") for piece in pieces[1:]]
    return pieces[0] + "".join(fields[key.strip()] + after for key, _, after in rest)


def embed_json(value: Any) -> str:
    """JSON that can stand inside a script element: no character sequence in it can end the element or open a
    comment.
    """
    text = json.dumps(strict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _charts(steps: Steps) -> tuple[list[tuple[_Panel, Chart]], list[tuple[_Panel, Chart]]]:
    """Known charts in a fixed order, then one chart for every metric that none of them shows."""
    used = {"time", names.TIME_STEP, names.REWARD_STD}
    known: list[tuple[_Panel, Chart]] = []
    every = sorted({metric for values in steps.values() for metric in values})
    used |= {metric for metric in every if re.fullmatch(r"(eval/[^/]+/)?stats/.*/count", metric)}
    for panel in (*_PANELS[:1], *_sample_panels(every), *_PANELS[1:]):
        wanted = dict(panel.lines)
        if names.REWARD_MEAN in wanted:
            wanted |= {metric: f"evaluation of {name}" for metric, name in names.eval_scores(every).items()}
        used |= set(wanted)
        lines: dict[str, Points] = {
            label: found for metric, label in wanted.items() if (found := series(steps, metric))
        }
        band = None
        if panel.band and (widths := series(steps, panel.band)):
            band = (next(iter(panel.lines.values())), widths)
        chart = line_chart(panel.title, lines, band=band)
        if chart:
            known.append((panel, chart))
    for title, prefix, hint in (
        ("Time per step", names.TIME_PREFIX, "seconds of wall time, by what they were spent on"),
        ("Faults", names.FAULT_PREFIX, "failed attempts per step, by kind; the run repeats or replaces them"),
    ):
        parts = [metric for metric in every if metric.startswith(prefix) and metric != names.TIME_STEP]
        used |= set(parts)
        # A step that says nothing about a part had none of it; one that was not timed at all is left out.
        rows = {step: row for step, row in steps.items() if prefix == names.FAULT_PREFIX or row.keys() & set(parts)}
        values = {m.removeprefix(prefix): [(step, row.get(m, 0.0)) for step, row in rows.items()] for m in parts}
        chart = stacked_chart(title, values)
        if chart:
            known.append((_Panel(title=title, lines={}, hint=hint), chart))
    other = []
    for metric in every:
        chart = None if metric in used else line_chart(metric, {metric: series(steps, metric)})
        if chart:
            other.append((_Panel(title=metric, lines={}, hint=""), chart))
    return known, other


def _sample_panels(every: Sequence[str]) -> Iterator[_Panel]:
    """Charts of reward components, where a run has several, and of what its code recorded."""
    components = list(component_means(dict.fromkeys(every, 0.0)))
    if len(components) > 1:
        yield _Panel(
            title="Reward components",
            lines={f"{names.COMPONENT_PREFIX}{name}/mean": name for name in components},
            hint="mean of each before weights and normalisation",
        )
    for metric in every:
        if metric.startswith(names.STATS_PREFIX) and f"{metric}/count" in every:
            lines = {metric: "mean", f"{metric}/min": "smallest", f"{metric}/max": "largest"}
            yield _Panel(title=metric, lines=lines, hint="over the step's samples that recorded it")


def _tiles(steps: Steps) -> Iterator[str]:
    """Return the few numbers that say how the run went; losses only where there is no reward."""
    reward = _finite(series(steps, names.REWARD_MEAN))
    for metric, name in names.eval_scores(metric for values in steps.values() for metric in values).items():
        if evaluation := _finite(series(steps, metric)):
            first, last = evaluation[0][1], evaluation[-1][1]
            change = f"{_rounded(first)} → {_rounded(last)}"
            yield _tile(f"Evaluation of {name}", change, f"{last - first:+.3g} over the run", lead=True)
    for label, name in (("Evaluation loss", names.EVAL_LOSS), ("Training loss", names.LOSS)):
        loss = _finite(series(steps, name))
        if loss and not reward:
            yield _tile(label, f"{_rounded(loss[0][1])} → {_rounded(loss[-1][1])}", "first and last")
    if reward:
        window = max(1, len(reward) // 10)
        first, last = (sum(v for _, v in part) / window for part in (reward[:window], reward[-window:]))
        yield _tile("Training reward", f"{_rounded(first)} → {_rounded(last)}", "mean of first and last tenth")
    if rate := _finite(series(steps, names.TOKENS_PER_SECOND)):
        middle = sorted(value for _, value in rate)[len(rate) // 2]
        yield _tile("Throughput", f"{format_number(round(middle))}", "tokens per second, median")
    if stale := _finite(series(steps, names.STALENESS_MAX)):
        yield _tile("Stalest token", format_number(max(value for _, value in stale)), "weight versions, whole run")
    if mismatch := _finite(series(steps, names.MISMATCH_MEAN)):
        mean = sum(value for _, value in mismatch) / len(mismatch)
        yield _tile("Engine mismatch", format_number(mean), "mean |Δ log p|, sampling against trainer")
    failed = sum(
        value
        for values in steps.values()
        for name, value in values.items()
        if name.startswith(names.FAULT_PREFIX) and value > 0
    )
    if reward:
        yield _tile("Faults", format_number(failed), "failed attempts at samples")


def _tile(label: str, value: str, detail: str, *, lead: bool = False) -> str:
    return (
        f'<div class="tile{" lead" if lead else ""}"><div class="label">{escape(label)}</div>'
        f'<div class="value">{escape(value)}</div><div class="detail">{escape(detail)}</div></div>'
    )


def _card(index: int, panel: _Panel, chart: Chart) -> str:
    labels = [line["name"] for line in chart.hover["series"]]
    legend = "".join(
        f'<span class="key"><i class="swatch {line_style(i)}"></i>{escape(label)}</span>'
        for i, label in enumerate(labels)
    )
    hint = f'<p class="hint">{escape(panel.hint)}</p>' if panel.hint else ""
    return (
        f'<figure class="card" data-chart="{index}"><figcaption><h3>{escape(panel.title)}</h3>'
        f'<div class="legend">{legend if len(labels) > 1 else ""}</div></figcaption>{chart.svg}{hint}</figure>'
    )


def _other_section(other: Sequence[tuple[_Panel, Chart]], *, first: int) -> str:
    if not other:
        return ""
    cards = "".join(_card(first + index, panel, chart) for index, (panel, chart) in enumerate(other))
    return (
        f'<details class="more"><summary>{len(other)} more metrics</summary><div class="charts">{cards}</div></details>'
    )


def _subtitle(steps: Steps) -> str:
    if not steps:
        return "no steps yet"
    times = [values["time"] for values in steps.values() if "time" in values]
    seconds = max(times) - min(times) if times else 0.0
    ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(times))) if times else "at an unknown time"
    return f"{max(steps):,} steps in {format_duration(seconds)} · last value {ended}"


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min 5 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _rounded(value: float) -> str:
    return f"{value:.3f}" if 0.0005 <= abs(value) < 10 or value == 0 else format_number(value)


def _finite(points: Points) -> Points:
    return [point for point in points if math.isfinite(point[1])]


def asset(name: str) -> str:
    """Return the text of a file of the pages."""
    return resources.files("areal.infra.metrics").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


Points = list[tuple[int, float]]
"""(step, value) in order of steps."""

WIDTH: Final = 480
HEIGHT: Final = 196
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 8, 26
MAX_POINTS: Final = 600
"""More points than this look the same at the size of a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart and what its hover needs."""

    svg: str
    hover: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Scales from data to the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, step: float) -> float:
        span = self.x_high - self.x_low
        share = 0.5 if span == 0 else (step - self.x_low) / span
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def hover(self, title: str, series: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        domain = [self.x_low, self.x_high, self.y_low, self.y_high]
        plot = [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM]
        return {"title": title, "domain": domain, "plot": plot, "series": list(series)}


def line_chart(title: str, series: Mapping[str, Points], *, band: tuple[str, Points] | None = None) -> Chart | None:
    """Curves over steps; None when no series has a finite value.

    band: name of a series and the half-width of a shaded band around it, e.g. a standard deviation. A value that is not
    finite breaks the line.
    """
    series = {name: thin(points) for name, points in series.items()}
    finite = {name: [p for p in points if math.isfinite(p[1])] for name, points in series.items()}
    values = [value for points in finite.values() for _, value in points]
    steps = [step for points in finite.values() for step, _ in points]
    if not values:
        return None
    edges = _band_edges(series, band)
    values += [value for _, low, high in edges for value in (low, high)]
    frame = _frame(steps, min(values), max(values))
    body = [_axes(frame)]
    if edges:
        outline = [(s, high) for s, _, high in edges] + [(s, low) for s, low, _ in reversed(edges)]
        body.append(f'<path class="band c0" d="{_path([(frame.x(s), frame.y(v)) for s, v in outline])}Z"/>')
    for index, (name, points) in enumerate(series.items()):
        runs = _finite_runs(points)
        path = "".join(_path([(frame.x(s), frame.y(v)) for s, v in run]) for run in runs)
        style = line_style(index)
        body.append(f'<path class="line {style}" d="{path}"/>')
        if len(finite[name]) <= 40:
            body += [
                f'<circle class="dot {style}" cx="{frame.x(s)}" cy="{frame.y(v)}" r="2.4"/>' for s, v in finite[name]
            ]
    hover = [{"name": name, "style": line_style(i), "points": finite[name]} for i, name in enumerate(series)]
    return Chart(svg=_svg(title, body), hover=frame.hover(title, hover))


def stacked_chart(title: str, series: Mapping[str, Points]) -> Chart | None:
    """Areas on top of each other, for parts of a whole; a missing or non-finite part counts as 0. None without
    values.
    """
    steps = sorted({step for points in series.values() for step, _ in points})
    parts = {name: dict(points) for name, points in series.items()}
    steps = [step for step, _ in thin([(step, sum(part.get(step, 0.0) for part in parts.values())) for step in steps])]
    if not steps:
        return None
    base = dict.fromkeys(steps, 0.0)
    layers: list[tuple[int, list[tuple[int, float, float]]]] = []
    for index, part in enumerate(parts.values()):
        layer = []
        for step in steps:
            value = part.get(step, 0.0)
            top = base[step] + (value if math.isfinite(value) and value > 0 else 0.0)
            layer.append((step, base[step], top))
            base[step] = top
        layers.append((index, layer))
    frame = _frame(steps, 0.0, max(base.values()) or 1.0)
    body = [_axes(frame)]
    for index, layer in layers:
        outline = [(frame.x(s), frame.y(top)) for s, _, top in layer]
        outline += [(frame.x(s), frame.y(low)) for s, low, _ in reversed(layer)]
        body.append(f'<path class="area c{index % 8}" d="{_path(outline)}Z"/>')
    hover = [
        {
            "name": name,
            "style": line_style(i),
            "points": [(s, v) for s, v in part.items() if s in base and math.isfinite(v)],
            "stacked": True,
        }
        for i, (name, part) in enumerate(parts.items())
    ]
    return Chart(svg=_svg(title, body), hover=frame.hover(title, hover))


def line_style(index: int) -> str:
    """Return the classes of the style sheet for a curve: eight colours, then the same ones dashed and dotted."""
    dash = index // 8 % 3
    return f"c{index % 8} d{dash}" if dash else f"c{index % 8}"


def thin(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most about `limit` points that keep first, last and the extremes of every stretch; few points stay as they
    are.
    """
    if len(points) <= limit:
        return points
    size = math.ceil(2 * len(points) / limit)
    kept: dict[int, float] = dict([points[0], points[-1]])
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        comparable = [point for point in bucket if math.isfinite(point[1])] or bucket
        kept.update([min(comparable, key=lambda p: p[1]), max(comparable, key=lambda p: p[1])])
    return sorted(kept.items())


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that cover [low, high]: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def format_number(value: float) -> str:
    """Short: 0.25, 12.5k, 1.0e-05."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.4g}"


def _frame(steps: Sequence[int], low: float, high: float) -> _Frame:
    """Scales with a little air around the data; 0 is the lower edge when the data starts near it."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        margin = abs(high) * 0.1 or 1.0
        low, high = (0.0 if low == 0 else low - margin), high + margin
    elif 0 < low < 0.4 * high:
        low = 0.0
    air = 0.05 * (high - low)
    return _Frame(min(steps), max(steps), low if low == 0 else low - air, high + air)


def _axes(frame: _Frame) -> str:
    parts = []
    for value in ticks(frame.y_low, frame.y_high):
        if not frame.y_low <= value <= frame.y_high:
            continue
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{format_number(value)}</text>')
    whole = [frame.x_low] if frame.x_low == frame.x_high else ticks(frame.x_low, frame.x_high, 6)
    for step in whole:
        if step == int(step) and frame.x_low <= step <= frame.x_high:
            x, label = frame.x(step), format_number(step)
            parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - 7}" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _band_edges(series: Mapping[str, Points], band: tuple[str, Points] | None) -> list[tuple[int, float, float]]:
    if band is None or band[0] not in series:
        return []
    widths = dict(band[1])
    return [
        (step, value - widths[step], value + widths[step])
        for step, value in series[band[0]]
        if step in widths and math.isfinite(value) and math.isfinite(widths[step])
    ]


def _finite_runs(points: Points) -> list[Points]:
    runs: list[Points] = [[]]
    for step, value in points:
        if math.isfinite(value):
            runs[-1].append((step, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(points))


def _svg(title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{"".join(body)}</svg>'
    )
