"""Decide after which steps a run saves its recovery state, by count and by time, at a bounded cost."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from areal.infra.checkpoint.config import CheckpointConfig


class SaveSchedule:
    """Says when a save is due. Steps are counted by the caller, time from `start` or from the end of the last save.

        schedule = SaveSchedule(config.checkpoint)
        schedule.start()
        ...
        if schedule.is_due(step):
            with schedule.measured():
                store.save(...)

    A save that took d seconds is followed by a pause of at least `every_seconds`, and of at least d / max_overhead - d
    seconds. So a save takes at most the share `max_overhead` of the time until the next one begins, and all of them
    together take at most that share of the run. Steps of `every_steps` are saved whatever that costs.
    """

    def __init__(self, config: CheckpointConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._config = config
        self._clock = clock
        self._pause = config.every_seconds
        self._since = clock()

    def start(self) -> None:
        """Count time from now: what came before the first step cannot be saved."""
        self._since = self._clock()

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` finished steps is to be saved."""
        by_time = self._config.every_seconds > 0 and self._clock() - self._since >= self._pause
        return by_time or self.is_by_steps(step)

    def is_by_steps(self, step: int) -> bool:
        """Whether the state after `step` finished steps is to be saved because of `every_steps`."""
        every = self._config.every_steps
        return bool(every) and step % every == 0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the save in the block, one that fails included: the attempt took its time as well."""
        begin = self._clock()
        try:
            yield
        finally:
            self._since = self._clock()
            seconds = self._since - begin
            self._pause = max(self._config.every_seconds, seconds / self._config.max_overhead - seconds)


def describe(config: CheckpointConfig) -> str:
    """Return in words when a run saves."""
    parts = []
    if config.every_steps:
        parts.append(f"after every {config.every_steps} steps")
    if config.every_seconds:
        share = f"{100 * config.max_overhead:.3g} %"
        parts.append(
            f"after the first step that ends {config.every_seconds:g} s or more after the last save, later where "
            f"saving would take more than {share} of the time"
        )
    return "; ".join([*parts, "after the last step, and on SIGTERM or Ctrl-C"])
