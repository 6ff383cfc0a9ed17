"""Draw the figures of docs/figures from the numbers beside them: docs/figures/NAME.json becomes NAME.svg.

    python scripts/draw_figures.py                                 # all figures; --check: exit 1 if one differs
    python scripts/draw_figures.py --from runs/digits/first NAME   # take the numbers of a run first
    python scripts/draw_figures.py --from runs/digits/first/trace/step-000010.json NAME     # or those of a trace

The figure of a run shows the reward of each step with its deviation, and below it where the seconds of each step went;
that of a trace, what trainer, rollouts and rewards did at the same time. Colours suit light and dark pages; nothing is
loaded from elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/figures"
PARTS = {"rollout_wait": "#4c78a8", "update": "#f58518", "prepare": "#54a24b", "publish": "#b279a2"}
"""Parts of a step in the order they are stacked, with their colours."""
WIDTH, LEFT, RIGHT = 720, 48, 704
REWARD_TOP, REWARD_BOTTOM, TIME_TOP, TIME_BOTTOM = 40, 200, 250, 350
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#666}.axis{stroke:#999;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}.axis{stroke:#777}}"
)


def numbers_of(run: Path) -> dict[str, list[float]]:
    """Return the columns that a figure needs, a value per step, from metrics.jsonl of a run."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "reward/mean" in row]
    names = {"step": "step", "reward": "reward/mean", "deviation": "reward/std"}
    names |= {part: f"time/{part}" for part in PARTS}
    return {name: [round(float(row.get(key, 0.0)), 4) for row in rows] for name, key in names.items()}


def points(pairs: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def events_of(trace: Path) -> dict[str, Any]:
    """Return what the figure of a trace needs, in milliseconds since its first step: slices of the trainer as (part,
    begin, end), episodes in flight as (time, number), and times at which the process of a reward worked, if it has one.
    """
    events = sorted(json.loads(trace.read_text(encoding="utf-8")), key=lambda event: event["ts"])
    slices = [event for event in events if event["ph"] == "X"]
    steps = [event for event in slices if event["name"].startswith("step ")]
    first, last = steps[0]["ts"], max(event["ts"] + event["dur"] for event in steps)

    def spans(events: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
        times = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events]
        kept = [(name, max(begin, first), min(end, last)) for name, begin, end in times if begin < last and end > first]
        return [(name, round((begin - first) / 1e3, 1), round((end - first) / 1e3, 1)) for name, begin, end in kept]

    flying, flights = 0, [(0.0, 0)]
    for event in events:
        if event["name"].partition(" ")[0] == "episode" and event["ph"] in "be" and event["ts"] <= last:
            flying += 1 if event["ph"] == "b" else -1
            time = round(max(0.0, (event["ts"] - first) / 1e3), 1)
            if time - flights[-1][0] < (last - first) / 1e3 / 400:
                flights[-1] = (flights[-1][0], flying)
            else:
                flights.append((time, flying))
    busy: list[tuple[float, float]] = []
    for _, begin, end in spans([event for event in slices if event["name"] == "value"]):
        if busy and begin - busy[-1][1] < 1.0:
            busy[-1] = (busy[-1][0], max(end, busy[-1][1]))
        else:
            busy.append((begin, end))
    return {
        "length": round((last - first) / 1e3, 1),
        "steps": spans(steps),
        "parts": spans([event for event in slices if event["name"] in PARTS]),
        "flights": flights,
        "busy": busy,
    }


def timeline(data: dict[str, Any]) -> str:
    """Return the figure of a trace: the trainer's parts, episodes in flight and the reward's process on one axis."""

    def x(time: float) -> float:
        return LEFT + (RIGHT - LEFT) * time / data["length"]

    def bar(begin: float, end: float, top: int, colour: str) -> str:
        width = max(x(end) - x(begin), 1.0)
        return f'<rect x="{x(begin):.1f}" y="{top}" width="{width:.1f}" height="34" fill="{colour}"/>'

    most = max(number for _, number in data["flights"])
    corners = [(x(0.0), 220.0)]
    for time, number in [*data["flights"], (data["length"], 0)]:
        corners += [(x(time), corners[-1][1]), (x(time), 220.0 - 80.0 * number / most)]
    drawn = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 330" role="img">',
        f"<title>{len(data['steps'])} steps of a run, {data['length'] / 1e3:.1f} seconds</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="38">trainer</text>',
        *(bar(begin, end, 74, PARTS[part]) for part, begin, end in data["parts"]),
        f'<text x="{LEFT}" y="132">episodes in flight, at most {most}</text>',
        f'<polygon points="{points([*corners, (x(data["length"]), 220.0)])}" fill="#4c78a8" fill-opacity="0.5"/>',
        *([f'<text x="{LEFT}" y="246">process of the reward</text>'] if data["busy"] else []),
        *(bar(begin, end, 254, "#b279a2") for begin, end in data["busy"]),
        f'<path class="axis" fill="none" d="M{LEFT} 300H{RIGHT}"/>',
    ]
    for index, (part, colour) in enumerate(PARTS.items()):
        at = LEFT + 70 + 130 * index
        drawn.append(
            f'<rect x="{at}" y="29" width="10" height="10" fill="{colour}"/><text x="{at + 14}" y="38">{part}</text>'
        )
    for name, begin, end in data["steps"]:
        drawn.append(f'<text x="{x((begin + end) / 2):.1f}" y="64" text-anchor="middle">{name}</text>')
        drawn.append(f'<path class="axis" stroke-dasharray="2 3" d="M{x(end):.1f} 54V300"/>')
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        time = data["length"] * share
        drawn.append(f'<text x="{x(time):.1f}" y="318" text-anchor="{anchor}">{time / 1e3:.1f} s</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def curves(data: dict[str, list[float]]) -> str:
    """Return the figure of a run. Rewards are shown from 0 to 1 at least, seconds up to their 98th percentile."""
    steps = len(data["step"])
    columns = [LEFT + (RIGHT - LEFT) * index / max(1, steps - 1) for index in range(steps)]
    best = max(1.0, *data["reward"])

    def height(value: float) -> float:
        return REWARD_BOTTOM - (REWARD_BOTTOM - REWARD_TOP) * min(max(value, 0.0), best) / best

    pairs = list(zip(data["reward"], data["deviation"], strict=True))
    band = [(x, height(mean + std)) for x, (mean, std) in zip(columns, pairs, strict=True)]
    band += reversed([(x, height(mean - std)) for x, (mean, std) in zip(columns, pairs, strict=True)])
    line = [(x, height(mean)) for x, mean in zip(columns, data["reward"], strict=True)]
    totals = sorted(sum(data[part][index] for part in PARTS) for index in range(steps))
    longest = totals[int(0.98 * (steps - 1))] or 1.0

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 400" role="img">',
        f"<title>reward and seconds of {steps} steps</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="24">mean reward of a step, and its deviation</text>',
        f'<polygon points="{points(band)}" fill="#4c78a8" fill-opacity="0.2"/>',
        f'<polyline points="{points(line)}" fill="none" stroke="#4c78a8" stroke-width="2"/>',
    ]
    for top, bottom, most, unit in ((REWARD_TOP, REWARD_BOTTOM, best, ""), (TIME_TOP, TIME_BOTTOM, longest, " s")):
        drawn.append(f'<path class="axis" fill="none" d="M{LEFT} {top}V{bottom}H{RIGHT}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{top + 4}" text-anchor="end">{most:.2g}{unit}</text>')
        drawn.append(f'<text x="{LEFT - 6}" y="{bottom + 4}" text-anchor="end">0</text>')
    below = [0.0] * steps
    x = LEFT
    for part, colour in PARTS.items():
        above = [base + value for base, value in zip(below, data[part], strict=True)]
        scale = (TIME_BOTTOM - TIME_TOP) / longest
        edges = [
            [(at, TIME_BOTTOM - scale * min(value, longest)) for at, value in zip(columns, side, strict=True)]
            for side in (above, below)
        ]
        drawn.append(f'<polygon points="{points(edges[0] + edges[1][::-1])}" fill="{colour}"/>')
        drawn.append(
            f'<rect x="{x}" y="222" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="231">{part}</text>'
        )
        below, x = above, x + 130
    for index in (0, steps // 2, steps - 1):
        anchor = "start" if index == 0 else "end" if index == steps - 1 else "middle"
        step = f"step {data['step'][index]:.0f}"
        drawn.append(f'<text x="{columns[index]:.1f}" y="370" text-anchor="{anchor}">{step}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures; default: all")
    parser.add_argument(
        "--from", dest="run", type=Path, metavar="RUN", help="take the numbers of this run or trace, for one NAME"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a figure is not as drawn")
    options = parser.parse_args(argv)
    if options.run and len(options.names) != 1:
        parser.error("--from needs one NAME")
    if options.run:
        numbers = numbers_of(options.run) if options.run.is_dir() else events_of(options.run)
        (FIGURES / f"{options.names[0]}.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    stale = []
    for source in sorted(FIGURES.glob("*.json")):
        if options.names and source.stem not in options.names:
            continue
        data, target = json.loads(source.read_text(encoding="utf-8")), source.with_suffix(".svg")
        drawn = timeline(data) if "flights" in data else curves(data)
        if not options.check:
            target.write_text(drawn, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != drawn:
            stale.append(target.name)
    if stale:
        print(f"not as drawn: {', '.join(stale)}; run `python scripts/draw_figures.py`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
