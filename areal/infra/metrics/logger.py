"""Write the numbers and sampled rollouts of a run, and read them back.

    metrics = MetricLogger(run_dir, config.metrics)
    metrics.log(0, {"reward/mean": 0.25, "time/train": 1.5})  # {"step":0,"time":1790000000.1,"reward/mean":0.25,...}
    metrics.log_rollouts(0, groups)
    metrics.close()

metrics.jsonl is the truth, `trackers` get copies. `areal.infra.metrics.live_view` shows them while the run goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Self

from areal.infra.metrics.attempts import next_attempt
from areal.infra.metrics.jsonl import JsonLines, decode_number, encode_group, encode_number, read_lines
from areal.infra.metrics.pictures import PICTURES_FOLDER, PictureStore
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

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
        self._pictures = PictureStore(run_dir / PICTURES_FOLDER, limit=config.pictures)
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
                for trajectory in group.trajectories:
                    self._pictures.add(trajectory.images)
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
