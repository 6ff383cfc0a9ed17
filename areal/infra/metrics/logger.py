"""Write the numbers and sampled rollouts of a run, show them while it runs, and read them back.

    metrics = MetricLogger(run_dir, config.metrics)
    metrics.log(0, {"reward/mean": 0.25, "time/train": 1.5})  # {"step":0,"time":1790000000.1,"reward/mean":0.25,...}
    metrics.log_rollouts(0, groups)
    metrics.close()

metrics.jsonl is the truth, `trackers` get copies. `LiveView` shows progress on a terminal, otherwise one log line
per step.
"""

from __future__ import annotations

import math
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Final, Self

from areal.infra.metrics import names
from areal.infra.metrics.attempts import next_attempt
from areal.infra.metrics.jsonl import JsonLines, decode_number, encode_group, encode_number, read_lines
from areal.infra.metrics.samples import component_means
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from areal.api import PromptGroup
    from areal.infra.metrics.config import MetricsConfig
    from areal.infra.metrics.trackers.tracking import Trackers


logger = getLogger(__name__)


METRICS_FILE: Final = "metrics.jsonl"
ROLLOUTS_FILE: Final = "rollouts.jsonl"
LOG_FILE: Final = "log.jsonl"
"""Log lines of a run, those of every start of it; `areal.utils.logging.recorded` writes them."""
RESERVED_NAMES: Final = frozenset({"step", "time"})
_MAX_WAITING: Final = 10_000


class MetricLogger:
    """Owns metrics.jsonl and rollouts.jsonl of one run directory.

    Not thread-safe: the trainer's loop is the only caller.
    """

    def __init__(
        self,
        run_dir: Path,
        config: MetricsConfig,
        *,
        first_step: int = 0,
        run_id: str = "",
        decode: Callable[[Sequence[int]], str] | None = None,
        trackers: Trackers | None = None,
    ) -> None:
        """Open the files for a new attempt at the run; a line that a killed run never finished is put aside.

        first_step: smallest step that this attempt may log. What the files have of it and of later steps stays there,
        superseded as soon as this attempt logs anything. run_id: "" keeps that of earlier attempts. decode: token ids
        to text (a tokenizer's `decode`), so that the report can colour text token by token. trackers: get a copy of
        everything; whoever opened them ends them.
        """
        self._config = config
        self.decode = decode
        """Token ids to text; may be set later, when the tokenizer is known."""
        self._metrics = JsonLines(run_dir / METRICS_FILE)
        self._rollouts = JsonLines(run_dir / ROLLOUTS_FILE)
        self.attempt = next_attempt(self._metrics.path, first_step, run_id=run_id)
        """What this process logs belongs to."""
        self._trackers = trackers
        self._rollouts_begun = False
        self._rollouts_failed = False
        self._begun = False
        self._waiting: list[dict[str, Any]] = []
        """Lines that a full disk has refused so far."""
        self._refused = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line for `step`; several lines of one step add up when read.

        Lines that the disk refuses are kept and written, in order, as soon as it takes them; no run ends for that.
        Raises ValueError for the reserved names "step" and "time".
        """
        if reserved := RESERVED_NAMES & metrics.keys():
            raise ValueError(f"metric name {sorted(reserved)[0]!r} is reserved; use a name such as 'time/train'")
        if not self._begun:
            self._begun = True
            self._waiting.append(self.attempt.marker())
            if self.attempt.number > 1:
                logger.info(
                    "attempt %d at this run logs from step %d on; older lines about these steps stay, superseded",
                    self.attempt.number,
                    self.attempt.first_step,
                )
        numbers = {name: encode_number(value) for name, value in metrics.items()}
        self._waiting.append({"step": step, "time": round(time.time(), 3), **numbers})
        self._write_waiting()
        if self._trackers is not None:
            self._trackers.log(step, metrics)

    def log_rollouts(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Append the first `rollouts_per_step` groups.

        Rollouts are for reading only: failing to write them is only logged.
        """
        try:
            if not self._rollouts_begun:
                self._rollouts.append(self.attempt.marker())
                self._rollouts_begun = True
            for group in groups[: self._config.rollouts_per_step]:
                self._rollouts.append(encode_group(step, group, decode=self.decode))
        except (OSError, ValueError) as error:
            if not self._rollouts_failed:
                logger.warning("%s cannot be written (%s); training goes on without it", self._rollouts.path, error)
            self._rollouts_failed = True
        if self._trackers is not None:
            self._trackers.log_samples(step, groups[: self._config.rollouts_per_step])

    def close(self) -> None:
        """Flush and close everything. Idempotent."""
        self._write_waiting()
        if self._waiting:
            logger.error("%d lines of %s are lost: the disk refused them to the end", len(self._waiting), METRICS_FILE)
            self._waiting.clear()
        self._metrics.close()
        self._rollouts.close()

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._metrics.append(self._waiting[0])
                del self._waiting[0]
        except OSError as error:
            if len(self._waiting) > _MAX_WAITING:
                raise
            if not self._refused:
                logger.warning(
                    "%s cannot be written (%s); its lines are kept until it can", self._metrics.path, error
                )  # once per outage
            self._refused = True
        else:
            if self._refused:
                logger.info("%s is written again, nothing is missing", self._metrics.path)
            self._refused = False

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def read_metrics(path: Path, attempt: int | None = None) -> dict[int, dict[str, float]]:
    """Step to metrics, in order of steps; "time" is included, a value logged twice for one step is the later one.

    Of a step that was done again, the newest attempt's values count. attempt: the steps as they stood when this attempt
    was the newest one; None is the last.
    """
    steps: dict[int, dict[str, float]] = {}
    for record in read_lines(path, attempt):
        values = steps.setdefault(record.pop("step"), {})
        values.update({name: number for name, value in record.items() if (number := decode_number(value)) is not None})
    return dict(sorted(steps.items()))


def series(steps: Mapping[int, Mapping[str, float]], name: str) -> list[tuple[int, float]]:
    """(step, value) pairs of one metric, steps without it left out."""
    return [(step, values[name]) for step, values in steps.items() if name in values]


_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_HISTORY: Final = 48

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
        for name in (names.REWARD_MEAN, *names.eval_scores(metrics), names.LOSS):
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
            label = next(label for key, label, _ in _shown(self._latest) if key == name)
            rows.append(
                Text.assemble((f"{label:<8}", "dim"), (sparkline(values[-_HISTORY:]), "cyan"), f" {values[-1]:.3f}")
            )
        grid = Table.grid(padding=(0, 3))
        shown = [(label, form.format(self._latest[key])) for key, label, form in _shown(self._latest)]
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
