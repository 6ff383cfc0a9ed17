"""Show how far an evaluation is: a bar on a terminal, else a log line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

from areal.infra.metrics.report import format_duration
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from areal.trainer.evaluation.samples import EvalSample

_logger = getLogger(__name__)
_PAUSE_SECONDS: Final = 5.0
"""Between two log lines at first; later a tenth of the time that has passed, so that long evaluations stay readable."""


class SampleProgress:
    """Counts samples. Use it as a context manager, so that the terminal is left in order."""

    def __init__(self, total: int, done: int) -> None:
        """total: samples of the whole evaluation; done: those that were there before."""
        self._total, self._done, self._first = total, done, done
        self._rewards: dict[str, tuple[float, int]] = {}
        self._started = self._logged = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Start drawing, on a terminal."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr))
            self._bar.start()
            self._task = self._bar.add_task("evaluating", total=self._total, completed=self._done)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self, name: str, sample: EvalSample) -> None:
        """Count one sample of the set `name`."""
        self._done += 1
        if sample.reward is not None:
            total, number = self._rewards.get(name, (0.0, 0))
            self._rewards[name] = total + sample.reward, number + 1
        total, number = self._rewards.get(name, (0.0, 0))
        score = f", mean reward {total / number:.3f}" if number else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=f"{name}{score}")
            return
        seconds = (now := time.monotonic()) - self._started
        if self._done == self._total or now - self._logged >= max(_PAUSE_SECONDS, seconds / 10):
            self._logged = now
            left = seconds * (self._total - self._done) / max(1, self._done - self._first)
            message = "evaluation of %s: %d of %d samples%s, %s left"
            _logger.info(message, name, self._done, self._total, score, format_duration(left))
