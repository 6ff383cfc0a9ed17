"""Show how a run gets on while it goes on: a live view on a terminal, log lines everywhere else.

    with LiveView(title="gsm8k/default") as view:
        view.begin("loading the model")                    # at once, before there are steps
        view.plan(100, progress=executor.batch_progress)
        view.update(1, {"reward/mean": 0.3})

The view has the phase, the samples of the step that are there already, elapsed and remaining time, and curves with
their range. Without a terminal each step is one log line, and a step that takes long gets a line now and then.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Any, Final, Self

from areal.infra.metrics import names
from areal.infra.metrics.samples import component_means
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    Progress = Callable[[], tuple[int, int]]
    """Returns how many samples of the coming step are there, and how many it needs."""

logger = getLogger(__name__)

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_HISTORY: Final = 48
_RECENT_STEPS: Final = 20
"""Steps whose mean duration the remaining time is reckoned with."""
_QUIET_SECONDS: Final = 30.0
"""Without a terminal, a line says what is going on when nothing else was said for so long."""

_SHOWN: Final[tuple[tuple[str, str, str], ...]] = (
    (names.REWARD_MEAN, "reward", "{:.3f}"),
    (names.LOSS, "loss", "{:.4f}"),
    (names.ACCURACY, "accuracy", "{:.1%}"),
    (names.MARGIN, "margin", "{:.3f}"),
    (names.LENGTH_MEAN, "length", "{:.1f}"),
    (names.ENTROPY, "entropy", "{:.3f}"),
    (names.KL, "kl", "{:.4f}"),
    (names.CLIP_FRACTION, "clipped", "{:.1%}"),
    (names.STALENESS_MEAN, "staleness", "{:.2f}"),
    (names.STALENESS_MAX, "stalest", "{:.0f}"),
    (names.TOKENS_PER_SECOND, "tokens/s", "{:,.0f}"),
)
"""Metric, label and format, in the order they are shown; evaluation sets follow the reward."""


def _shown(metrics: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Entries of `_SHOWN`, of evaluation sets, and of reward components where there are several, that `metrics` has
    values for.
    """
    sets = names.eval_scores(metrics)
    scores = [(metric, f"eval {name}" if len(sets) > 1 else "eval", "{:.3f}") for metric, name in sets.items()]
    components = [(f"{names.COMPONENT_PREFIX}{name}/mean", name, "{:.3f}") for name in component_means(metrics)]
    parts = components if len(components) > 1 else []
    return [entry for entry in (_SHOWN[0], *parts, *scores, *_SHOWN[1:]) if entry[0] in metrics]


def _in_notebook() -> bool:
    """Return whether a kernel of Jupyter runs this process; nothing is imported to find out."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class LiveView:
    """Shows a run from its start to its end. Use as a context manager, so that the terminal is left in order."""

    def __init__(
        self,
        *,
        title: str = "",
        enabled: bool = True,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Choose between live view and log lines.

        enabled: False always gives log lines. stream: where a live view may be drawn, if it is a terminal; None is
        stderr. clock: seconds.
        """
        self._title = title
        self._stream = stream if stream is not None else sys.stderr
        self._notebook = stream is None and _in_notebook()
        self._live_wanted = enabled and (self._notebook or self._stream.isatty())
        self._live: Any = None
        self._clock = clock
        self._began = self._phase_began = self._said = clock()
        self._phase = "starting"
        self._total: int | None = None
        self._progress: Progress | None = None
        self._latest: dict[str, float] = {}
        self._history: dict[str, deque[tuple[int, float]]] = {}
        self._step = 0
        self._ends: deque[tuple[int, float]] = deque(maxlen=_RECENT_STEPS + 1)
        """Last steps and when they ended."""
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start drawing, on a terminal; elsewhere, start to watch for long silence."""
        if self._live_wanted and self._notebook:
            from areal.infra.metrics.notebook import NotebookPanel

            self._live = NotebookPanel(self._render)
            self._live.start()
        elif self._live_wanted:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            # Log lines that are printed meanwhile appear above the view.
            self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=False)
            self._live.start(refresh=True)
        else:
            self._heart = threading.Thread(target=self._watch, name="areal-heartbeat", daemon=True)
            self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        self._progress = None  # what it asks may be closed by now
        if kind is None:
            self.begin("done" if self._total is not None and self._step >= self._total else "stopped")
        else:
            self.begin(f"ended by {kind.__name__}")
        self._closed.set()
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._heart is not None:
            self._heart.join()

    def begin(self, phase: str) -> None:
        """Say what is being done now, such as "loading the model"."""
        self._phase, self._phase_began = phase, self._clock()

    def plan(self, total_steps: int | None, *, first_step: int = 0, progress: Progress | None = None) -> None:
        """Say how many steps there will be, and how many are done already; steps begin now.

        progress: asked a few times per second, from another thread. It must be quick and must not fail.
        """
        self._total, self._step, self._progress = total_steps, first_step, progress
        self._ends.clear()
        self._ends.append((first_step, self._clock()))
        self.begin("first step")

    def end_steps(self) -> None:
        """Say that no step follows: what comes is the end of the run."""
        self._progress = None
        self.begin("finishing")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the values after `step` training steps; values of earlier steps stay until they are replaced."""
        self._step = step
        self._ends.append((step, self._clock()))
        self._latest = {**self._latest, **metrics}
        for name in (names.REWARD_MEAN, *names.eval_scores(metrics), names.LOSS):
            if name in metrics:
                # Replaced, not changed: the thread that draws may be reading the old one.
                known = self._history.get(name, deque(maxlen=_HISTORY))
                self._history = {**self._history, name: deque([*known, (step, metrics[name])], maxlen=_HISTORY)}
        self.begin("training")
        if self._live is None:
            logger.info("%s", format_step(step, self._total, metrics))
            self._said = self._clock()

    def remaining_seconds(self) -> float | None:
        """Return how long the remaining steps take at the pace of the last ones; None as long as that is unknown."""
        if self._total is None or len(self._ends) < 2:
            return None
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        return (self._total - last) * (ended - began) / max(1, last - first)

    def heartbeat(self) -> str | None:
        """Return what a log line should say now; None when something was said lately."""
        now = self._clock()
        if now - max(self._said, self._phase_began) < _QUIET_SECONDS:
            return None
        self._said = now
        return f"{self._where()}: under way for {format_seconds(now - self._phase_began)}"

    def _where(self) -> str:
        """Describe the step, the phase and the samples of it that are there."""
        parts = [self._phase]
        if self._ends:
            of_total = f"/{self._total}" if self._total else ""
            parts = [f"step {min(self._step + 1, self._total or self._step + 1)}{of_total}"]
            if self._phase not in ("training", "first step"):
                parts.append(self._phase)
            if self._progress is not None:
                parts.append("{} of {} episodes".format(*self._progress()))
        return ", ".join(parts)

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            line = self.heartbeat()
            if line is not None:
                logger.info("%s", line)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        rows: list[Any] = [self._render_head()]
        latest, shown = self._latest, _shown(self._latest)
        for name, points in self._history.items():
            label = next((label for key, label, _ in shown if key == name), name)
            rows.append(Text.assemble((f"{label:<8} ", "dim"), (sparkline([value for _, value in points]), "cyan")))
            rows[-1].append(f" {points[-1][1]:.3f}")
            rows[-1].append(axis(points), style="dim")
        grid = Table.grid(padding=(0, 3))
        values = [(label, form.format(latest[key])) for key, label, form in shown]
        for start in range(0, len(values), 5):
            grid.add_row(*(Text.assemble((f"{label} ", "dim"), value) for label, value in values[start : start + 5]))
        rows.append(grid)
        split = time_split(latest)
        if split:
            rows.append(Text("  ".join(f"{what} {share:.0%}" for what, share in split), style="dim"))
        return Panel(Group(*rows), title=Text(self._title) if self._title else None, border_style="dim")

    def _render_head(self) -> Any:
        """Draw the steps with their bar, and below it the time, the phase and the coming step's samples."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        now = self._clock()
        remaining = self.remaining_seconds()
        times = f"{format_seconds(now - self._began)} elapsed"
        if remaining is not None:
            since = now - self._ends[-1][1]
            times += f", {format_seconds(max(0.0, remaining - since))} left"
        of_total = f"/{self._total}" if self._total else ""
        planned = bool(self._ends)
        bar = ProgressBar(total=self._total, completed=self._step, pulse=self._total is None)
        head.add_row(f"step {self._step}{of_total}" if planned else "no step yet", bar)
        phase = f"{self._phase} ({format_seconds(now - self._phase_began)})"
        head.add_row(Text(phase, style="bold"), Text(times, style="dim"))
        if self._progress is not None:
            done, wanted = self._progress()
            head.add_row(f"episodes {done}/{wanted}", ProgressBar(total=wanted, completed=done))
        return head


def axis(points: Sequence[tuple[int, float]]) -> str:
    """Say what a curve ranges over: `  0.125 .. 0.531, steps 1-48`."""
    values = [value for _, value in points if math.isfinite(value)]
    span = f"  {min(values):.3g} .. {max(values):.3g}," if values else " "
    return f"{span} steps {points[0][0]}-{points[-1][0]}"


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_step(step: int, total: int | None, metrics: Mapping[str, float]) -> str:
    """`step 12/100  reward 0.531  length 41.2  tokens/s 1,204  step took 2.3 s (train 40%, rollout_wait 60%)`."""
    parts = [f"step {step}/{total}" if total else f"step {step}"]
    parts += [f"{label} {form.format(metrics[key])}" for key, label, form in _shown(metrics)]
    if names.TIME_STEP in metrics:
        split = ", ".join(f"{what} {share:.0%}" for what, share in time_split(metrics))
        parts.append(f"step took {metrics[names.TIME_STEP]:.2f} s{f' ({split})' if split else ''}")
    return "  ".join(parts)


def time_split(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Shares of the step's time by what it was spent on, largest first; empty when it was not measured."""
    seconds = {
        name.removeprefix(names.TIME_PREFIX): value
        for name, value in metrics.items()
        if name.startswith(names.TIME_PREFIX) and name != names.TIME_STEP and math.isfinite(value) and value >= 0
    }
    total = max(sum(seconds.values()), metrics.get(names.TIME_STEP, 0.0))
    if total <= 0:
        return []
    return sorted(((what, value / total) for what, value in seconds.items()), key=lambda item: -item[1])


def sparkline(values: Sequence[float]) -> str:
    """Return one block character per value, scaled to the range of the values; a dot for values that are not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low
    characters = []
    for value in values:
        if not math.isfinite(value):
            characters.append("·")
            continue
        level = 0.5 if span == 0 else (value - low) / span
        characters.append(_BLOCKS[min(len(_BLOCKS) - 1, int(level * len(_BLOCKS)))])
    return "".join(characters)
