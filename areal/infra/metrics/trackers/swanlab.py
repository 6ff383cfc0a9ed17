"""SwanLab: one experiment over all processes when online, one per process otherwise, since only the service resumes."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from areal.infra.metrics.trackers.tracking import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.infra.metrics.trackers.config import SwanlabConfig
    from areal.infra.metrics.trackers.tracking import Ending, TrackedRun

_STATE: Final = {"finished": "success", "interrupted": "aborted", "failed": "crashed"}


class SwanlabTracker:
    """An experiment in SwanLab."""

    package: ClassVar[str] = "swanlab"
    replaces: ClassVar[bool] = False

    def __init__(self, run: TrackedRun, settings: SwanlabConfig) -> None:
        self._swanlab: Any = importlib.import_module("swanlab")
        folder = run.directory / "swanlog"
        folder.mkdir(parents=True, exist_ok=True)
        online = {"id": run.id, "resume": "allow"} if settings.mode == "online" else {}
        self._run = self._swanlab.init(
            project=settings.project or run.experiment,
            workspace=settings.workspace or None,
            name=run.trial,
            group=settings.group or run.experiment,
            tags=list(settings.tags) or None,
            config={**run.flat_config(), "areal.id": run.id},
            log_dir=str(folder),
            mode=settings.mode,
            **online,
        )

    @staticmethod
    def problem(settings: SwanlabConfig) -> str:
        """Look for a login, which online runs need."""
        own = os.environ.get("SWANLAB_ROOT") or os.environ.get("SWANLAB_SAVE_DIR") or Path.home() / ".swanlab"
        logins = [Path(folder) / ".netrc" for folder in (".swanlab", own)]
        if settings.mode != "online" or os.environ.get("SWANLAB_API_KEY") or any(map(Path.is_file, logins)):
            return ""
        return "there is no login for SwanLab; run `swanlab login`, set SWANLAB_API_KEY, or write mode: offline"

    def known(self) -> None:
        """Return None: its client cannot read."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send all values of the step."""
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Send a table under the name "samples"."""
        table = self._swanlab.echarts.Table()
        table.add(list(SAMPLE_COLUMNS), [list(row) for row in rows])
        self._run.log({"samples": table}, step=step)

    def finish(self, ending: Ending) -> None:
        """End the experiment as a success, aborted or crashed; the summary goes where configurations are shown."""
        self._swanlab.config.update({f"areal.{name}": value for name, value in ending.summary.items()})
        error = None if ending.state == "finished" else f"exit code {ending.exit_code}"
        self._run.finish(state=_STATE[ending.state], error=error)
