"""Draw in the output of a notebook's cell: a live view while a run goes on, curves when it has ended.

    panel = NotebookPanel(render)       # render: returns what `rich` can draw
    panel.start()                       # display_data, with an identity
    panel.stop()                        # the last update_display_data

    MetricCurves(steps, [["reward/mean"], ["length/mean"]])     # as the last line of a cell

The live view is one display that is replaced, whatever happens to the run. Only IPython's own messages are used, so no
widgets have to be installed, and a notebook that is saved keeps the final state. A drawing that did not change is not
sent again. Curves are SVG without scripts, in colours that can be read on light and on dark pages.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from areal.infra.metrics import names
from areal.infra.metrics.logger import series
from areal.infra.metrics.report import format_number, line_chart, line_style

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SECONDS: Final = 1.0
"""Between two drawings. Each is a message that a browser on the other end of a slow line has to keep up with."""
_WIDTH: Final = 110
_FORMAT: Final = (
    "<pre style=\"white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,"
    "'Courier New',monospace\">{code}</pre>"
)


class NotebookPanel:
    """Shows what `render` returns until it is stopped; has the methods of `rich.live.Live` that a view needs."""

    def __init__(self, render: Callable[[], Any], *, seconds: float = _SECONDS) -> None:
        self._render, self._seconds = render, seconds
        self._handle: Any = None
        self._shown: dict[str, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._draw_again, name="areal-notebook", daemon=True)

    def start(self) -> None:
        """Show it, and go on showing it from a thread."""
        from IPython.display import display

        self._shown = self._drawn()
        self._handle = display(self._shown, raw=True, display_id=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the final state; nothing is drawn after it."""
        self._closed.set()
        self._thread.join()
        self._update()

    def _draw_again(self) -> None:
        while not self._closed.wait(self._seconds):
            self._update()

    def _update(self) -> None:
        drawn = self._drawn()
        if drawn != self._shown:
            self._shown = drawn
            self._handle.update(drawn, raw=True)

    def _drawn(self) -> dict[str, str]:
        """Return a MIME bundle: HTML for a browser, text for whatever converts the notebook."""
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=_WIDTH, force_terminal=True, force_jupyter=False)
        console.print(self._render())
        html = console.export_html(inline_styles=True, code_format=_FORMAT, clear=False)
        return {"text/html": html, "text/plain": console.export_text()}


_STYLE: Final = (
    ".areal-curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:12px 20px;"
    "max-width:1020px}"
    ".areal-curves figure{margin:0;max-width:none;width:auto;font:13px system-ui,sans-serif}"
    ".areal-curves figcaption{display:flex;flex-wrap:wrap;gap:0 14px;font-style:normal;margin:0;max-width:none;"
    "text-align:left}"
    ".areal-curves svg{display:block;width:100%;height:auto}"
    ".areal-curves text{fill:currentColor;opacity:.75;font-size:15px}"
    ".areal-curves .grid{stroke:currentColor;opacity:.15}"
    ".areal-curves .line{fill:none;stroke:currentColor;stroke-width:1.9}.areal-curves .d1{stroke-dasharray:7 4}"
    ".areal-curves .dot{fill:currentColor}.areal-curves .band{fill:currentColor;opacity:.18}"
)
_COLOURS: Final = ("#3b82f6", "#ea580c", "#0d9488", "#a855f7", "#ca8a04", "#db2777", "#65a30d", "#dc2626")
"""Of the curves of a chart, in order; each is far enough from white and from black."""


@dataclass(frozen=True)
class MetricCurves:
    """Charts of metrics over steps; a notebook draws them, and anything else prints their first and last values."""

    steps: Mapping[int, Mapping[str, float]]
    """Step to its metrics, by name."""
    charts: Sequence[Sequence[str]]
    """Which metrics share a chart. `reward/mean` has a band of one standard deviation."""

    def _repr_html_(self) -> str:
        colours = "".join(f".areal-curves .c{index}{{color:{colour}}}" for index, colour in enumerate(_COLOURS))
        drawn = "".join(self._figure(chart) for chart in self.charts)
        return f'<style>{_STYLE}{colours}</style><div class="areal-curves">{drawn}</div>'

    def __repr__(self) -> str:
        """Say for each metric where it began, where it ended, and how many steps have it."""
        found = {name: series(self.steps, name) for chart in self.charts for name in chart}
        return "\n".join(
            f"{name}: {format_number(points[0][1])} to {format_number(points[-1][1])} in {len(points)} steps"
            if points
            else f"{name}: no step has it"
            for name, points in found.items()
        )

    def _figure(self, chart: Sequence[str]) -> str:
        lines = {name: points for name in chart if (points := series(self.steps, name))}
        widths = series(self.steps, names.REWARD_STD)
        band = (names.REWARD_MEAN, widths) if names.REWARD_MEAN in lines and widths else None
        drawn = line_chart(", ".join(chart), lines, band=band)
        if drawn is None:
            return f"<figure><figcaption>{escape(', '.join(chart))}: no step has a value</figcaption></figure>"
        keys = "".join(
            f'<span><b class="{line_style(index)}">&#9644;</b> {escape(name)}</span>'
            for index, name in enumerate(lines)
        )
        return f"<figure><figcaption>{keys}</figcaption>{drawn.svg}</figure>"
