"""Progress of a run while it runs: a live view on a terminal, otherwise one log line per step. It only displays."""

from __future__ import annotations

import math
import sys
from typing import IO, TYPE_CHECKING, Any, Final, Self

from areal.infra.metrics import names
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

logger = getLogger(__name__)

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_HISTORY: Final = 48

_SHOWN: Final[tuple[tuple[str, str, str], ...]] = (
    (names.REWARD_MEAN, "reward", "{:.3f}"),
    (names.EVAL_REWARD, "eval", "{:.3f}"),
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
"""Metric, label and format, in the order they are shown."""


class LiveView:
    """Shows each step of a run. Use as a context manager, so that the terminal is left in order.

    with LiveView(total_steps=100, title="gsm8k/default") as view:
        view.update(1, {"reward/mean": 0.3})
    """

    def __init__(
        self, total_steps: int | None, *, title: str = "", enabled: bool = True, stream: IO[str] | None = None
    ) -> None:
        """Choose between live view and log lines.

        total_steps: None when unknown. enabled: False always gives log lines. stream: where a live view may be drawn,
        if it is a terminal; None is stderr.
        """
        self._total = total_steps
        self._title = title
        self._stream = stream if stream is not None else sys.stderr
        self._live_wanted = enabled and self._stream.isatty()
        self._live: Any = None
        self._latest: dict[str, float] = {}
        self._history: dict[str, list[float]] = {}
        self._step = 0

    def __enter__(self) -> Self:
        """Start drawing, on a terminal."""
        if self._live_wanted:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            # Log lines that are printed meanwhile appear above the view.
            self._live = Live(self._render(), console=console, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the values after `step` training steps; values of earlier steps stay until they are replaced."""
        self._step = step
        self._latest.update(metrics)
        for name in (names.REWARD_MEAN, names.EVAL_REWARD, names.LOSS):
            if name in metrics:
                self._history.setdefault(name, []).append(metrics[name])
        if self._live is None:
            logger.info("%s", format_step(step, self._total, metrics))
        else:
            self._live.update(self._render())

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        of_total = f"/{self._total}" if self._total else ""
        bar = ProgressBar(total=self._total, completed=self._step, pulse=self._total is None)
        head.add_row(f"step {self._step}{of_total}", bar)
        rows: list[Any] = [head]
        for name, values in self._history.items():
            label = next(label for key, label, _ in _SHOWN if key == name)
            rows.append(
                Text.assemble((f"{label:<8}", "dim"), (sparkline(values[-_HISTORY:]), "cyan"), f" {values[-1]:.3f}")
            )
        grid = Table.grid(padding=(0, 3))
        shown = [(label, form.format(self._latest[key])) for key, label, form in _SHOWN if key in self._latest]
        for start in range(0, len(shown), 5):
            grid.add_row(*(Text.assemble((f"{label} ", "dim"), value) for label, value in shown[start : start + 5]))
        rows.append(grid)
        split = time_split(self._latest)
        if split:
            rows.append(Text("  ".join(f"{what} {share:.0%}" for what, share in split), style="dim"))
        return Panel(Group(*rows), title=Text(self._title) if self._title else None, border_style="dim")


def format_step(step: int, total: int | None, metrics: Mapping[str, float]) -> str:
    """`step 12/100  reward 0.531  length 41.2  tokens/s 1,204  step took 2.3 s (train 40%, rollout_wait 60%)`."""
    parts = [f"step {step}/{total}" if total else f"step {step}"]
    parts += [f"{label} {form.format(metrics[key])}" for key, label, form in _SHOWN if key in metrics]
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
    """One block character per value, scaled to the range of the values; a dot for values that are not finite."""
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
