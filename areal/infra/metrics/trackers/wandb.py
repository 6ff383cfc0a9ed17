"""Weights & Biases: one run over all processes, steps on an axis of their own, tables of samples.

Values are plotted over the metric "step" instead of W&B's own counter, which refuses to go back: an evaluation may then
be sent before or after the numbers of its step. Where it logs to and with which key is wandb's own configuration.
"""

from __future__ import annotations

import importlib
import netrc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlparse

from areal.infra.metrics.trackers.tracking import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.infra.metrics.trackers.config import WandbConfig
    from areal.infra.metrics.trackers.tracking import Ending, TrackedRun

_STEP: Final = "step"


class WandbTracker:
    """A run in Weights & Biases."""

    package: ClassVar[str] = "wandb"
    replaces: ClassVar[bool] = False

    def __init__(self, run: TrackedRun, settings: WandbConfig) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._run = self._wandb.init(
            project=settings.project or run.experiment,
            entity=settings.entity or None,
            group=settings.group or run.experiment,
            name=run.trial,
            id=run.id,
            resume="allow",
            tags=list(settings.tags) or None,
            mode=settings.mode or None,
            dir=str(run.directory),
            config=dict(run.config),
            allow_val_change=True,
            # log.jsonl has the log; wrapping the terminal would disturb the live view.
            settings=self._wandb.Settings(console="off"),
        )
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_STEP)

    @staticmethod
    def problem(settings: WandbConfig) -> str:
        """Look for a login, which online runs need."""
        mode = settings.mode or os.environ.get("WANDB_MODE") or "online"
        if mode != "online" or os.environ.get("WANDB_API_KEY"):
            return ""
        host = urlparse(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
        try:
            known = netrc.netrc(os.environ.get("NETRC") or str(Path.home() / ".netrc")).authenticators(host)
        except (OSError, netrc.NetrcParseError):
            known = None
        if known is not None:
            return ""
        return f"there is no login for {host}; run `wandb login`, set WANDB_API_KEY, or write mode: offline"

    def known(self) -> None:
        """Return None: its client cannot read offline runs, and what is on its way is unknown."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send one row of the history."""
        self._run.log({_STEP: step, **metrics})

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Send a table under the name "samples"."""
        table = self._wandb.Table(columns=list(SAMPLE_COLUMNS), data=[list(row) for row in rows])
        self._run.log({_STEP: step, "samples": table})

    def finish(self, ending: Ending) -> None:
        """Send the summary and end the run with the process's exit code; a failed run is shown as such."""
        self._run.summary.update({"areal/state": ending.state, **{f"areal/{k}": v for k, v in ending.summary.items()}})
        self._run.finish(exit_code=ending.exit_code)
