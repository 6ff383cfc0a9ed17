"""TensorBoard event files, written by the tensorboard package alone (no torch).

A process that continues a run says so first, in the way TensorBoard knows: what earlier files have of the steps that
are done again is then left out, and each step is shown once.
"""

from __future__ import annotations

import importlib
import json
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from areal.infra.metrics.trackers.tracking import table_as_markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.infra.metrics.trackers.config import TensorBoardConfig
    from areal.infra.metrics.trackers.tracking import Ending, TrackedRun

_STATUS: Final = {"finished": "STATUS_SUCCESS", "interrupted": "STATUS_UNKNOWN", "failed": "STATUS_FAILURE"}


class TensorBoardTracker:
    """Event files in the run directory."""

    package: ClassVar[str] = "tensorboard"
    replaces: ClassVar[bool] = True

    def __init__(self, run: TrackedRun, settings: TensorBoardConfig) -> None:
        folder = run.directory / settings.folder
        self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._text: Any = importlib.import_module("tensorboard.plugins.text.summary_v2").text_pb
        self._hparams: Any = importlib.import_module("tensorboard.plugins.hparams.summary_v2")
        writer = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = writer(str(folder))
        # Every process says it, for readers take the first one as the beginning and the others as restarts.
        first = run.first_step + 1 if run.continues else 0
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=first, session_log=start))
        self._add(0, self._hparams.hparams_pb(run.flat_config(), trial_id=run.id))
        self._add(0, self._text("config", f"```json\n{json.dumps(run.config, indent=2, default=str)}\n```"))
        self._writer.flush()

    @staticmethod
    def problem(settings: TensorBoardConfig) -> str:
        """Check that the folder stays inside the run directory."""
        parts = settings.folder.split("/")
        inside = bool(settings.folder) and not settings.folder.startswith("/") and ".." not in parts
        return "" if inside else f"folder is {settings.folder!r}, expected one below the run directory"

    def known(self) -> None:
        """Return None: what is sent again takes the place of what is there."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, self._summaries.Summary(value=values))
        self._writer.flush()

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write the table as text, which the Text page shows."""
        self._add(step, self._text("samples", table_as_markdown(rows)))
        self._writer.flush()

    def finish(self, ending: Ending) -> None:
        """Write the summary and the state of the run, and close the file."""
        steps = int(ending.summary.get("steps") or 0)
        summary = {"state": ending.state, "exit_code": ending.exit_code, **ending.summary}
        self._add(steps, self._text("summary", f"```json\n{json.dumps(summary, indent=2, default=str)}\n```"))
        self._add(steps, self._session_end(_STATUS[ending.state]))
        self._writer.close()

    def _session_end(self, status: str) -> Any:
        """Return the message about the end of the run; the package's own function for it needs tensorflow."""
        hparams = "tensorboard.plugins.hparams"
        data = importlib.import_module(f"{hparams}.plugin_data_pb2")
        metadata = importlib.import_module(f"{hparams}.metadata")
        code = importlib.import_module(f"{hparams}.api_pb2").Status.Value(status)
        content = data.HParamsPluginData(session_end_info=data.SessionEndInfo(status=code, end_time_secs=time.time()))
        summary = self._summaries.Summary()
        described = metadata.create_summary_metadata(content)
        summary.value.add(tag=metadata.SESSION_END_INFO_TAG, metadata=described, tensor=metadata.NULL_TENSOR)
        return summary

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))
