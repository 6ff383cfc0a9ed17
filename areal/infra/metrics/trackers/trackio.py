"""Trackio: one run over all processes, in a local database or a Hugging Face Space."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from areal.infra.metrics.trackers.tracking import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.infra.metrics.trackers.config import TrackioConfig
    from areal.infra.metrics.trackers.tracking import Ending, TrackedRun


class TrackioTracker:
    """A run in Trackio."""

    package: ClassVar[str] = "trackio"
    replaces: ClassVar[bool] = False

    def __init__(self, run: TrackedRun, settings: TrackioConfig) -> None:
        self._trackio: Any = importlib.import_module("trackio")
        self._in_space = bool(settings.space_id)
        self._run = self._trackio.init(
            project=settings.project or run.experiment,
            # Trackio finds a run again by its name, so the name carries the identity.
            name=f"{run.trial}-{run.id[:8]}",
            group=settings.group or run.experiment,
            space_id=settings.space_id or None,
            config=run.flat_config(),
            resume="allow",
            embed=False,
        )

    @staticmethod
    def problem(settings: TrackioConfig) -> str:
        """Check the form of the Space's name."""
        name = settings.space_id
        if name.count("/") <= 1 and not name.startswith("/") and not name.endswith("/"):
            return ""
        return f"space_id is {name!r}, expected user/name"

    def known(self) -> dict[int, set[str]] | None:
        """Return what the local database has, which a process that was killed may not have filled; None for Spaces."""
        if self._in_space:
            return None
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        found: dict[int, set[str]] = {}
        for row in storage.get_logs(self._run.project, self._run.name):
            found.setdefault(int(row["step"]), set()).update(row)
        return found

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send all values of the step."""
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Send a table under the name "samples"."""
        table = self._trackio.Table(columns=list(SAMPLE_COLUMNS), data=[list(row) for row in rows])
        self._run.log({"samples": table}, step=step)

    def finish(self, ending: Ending) -> None:
        """Send the numbers of the summary and wait until all is written; Trackio knows no states of a run."""
        numbers = {"exit_code": ending.exit_code, **ending.summary}
        found = {f"areal/{name}": value for name, value in numbers.items() if isinstance(value, int | float)}
        self._run.log(found, step=int(ending.summary.get("steps") or 0))
        # Not the run's own: this one also forgets it, or Trackio would end it once more, with a greeting, at exit.
        self._trackio.finish()
