"""Line and stacked charts as SVG text. Pure functions on numbers; colours and fonts come from the page's style sheet.

A chart is drawn once, here, so that the page shows its curves without scripts; `Chart.hover` is what the script needs
to show the values under the pointer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Points = list[tuple[int, float]]
"""(step, value) in order of steps."""

WIDTH: Final = 480
HEIGHT: Final = 196
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 8, 26
MAX_POINTS: Final = 600
"""More points than this cannot be told apart at the size of a chart."""


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
        body.append(f'<path class="line c{index}" d="{path}"/>')
        if len(finite[name]) <= 40:
            body += [
                f'<circle class="dot c{index}" cx="{frame.x(s)}" cy="{frame.y(v)}" r="2.4"/>' for s, v in finite[name]
            ]
    hover = [{"name": name, "color": i, "points": finite[name]} for i, name in enumerate(series)]
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
            "color": i % 8,
            "points": [(s, v) for s, v in part.items() if s in base and math.isfinite(v)],
            "stacked": True,
        }
        for i, (name, part) in enumerate(parts.items())
    ]
    return Chart(svg=_svg(title, body), hover=frame.hover(title, hover))


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
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f'{"".join(body)}<g class="cursor" visibility="hidden"><line y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></g></svg>'
    )
