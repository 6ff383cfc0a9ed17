"""MLflow: one run over all processes, found again by the id that the store gave it.

Uses the client object alone: MLflow's "active run" is a global of the process, which may be the user's own.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from areal.infra.metrics.trackers.tracking import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.infra.metrics.trackers.config import MlflowConfig
    from areal.infra.metrics.trackers.tracking import Ending, TrackedRun

_STATUS: Final = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MAX_PARAMETERS: Final = 100
_MAX_VALUE: Final = 500
"""Characters of a parameter that every store takes."""
_MAX_METRICS: Final = 1000
_UNUSABLE: Final = re.compile(r"[^\w\-. /]")
_RUN: Final = "run_id"


class MlflowTracker:
    """A run in MLflow."""

    package: ClassVar[str] = "mlflow"
    replaces: ClassVar[bool] = False

    def __init__(self, run: TrackedRun, settings: MlflowConfig) -> None:
        uri = _uri(settings)
        if uri.startswith("file:") or "://" not in uri:
            # MLflow asks for this word before it writes folders; whoever writes such an address has decided.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow: Any = importlib.import_module("mlflow")
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        self._tables: list[dict[str, str]] = []
        if run.continues and _RUN in run.memory:
            self._id = run.memory[_RUN]
            tags = self._client.get_run(self._id).data.tags
            self._tables = json.loads(tags.get("mlflow.loggedArtifacts", "[]"))
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {**settings.tags, "areal.id": run.id, "areal.directory": str(run.directory.absolute())}
        experiment = settings.experiment or run.experiment
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = str(known.experiment_id if known is not None else self._client.create_experiment(experiment))
        self._id = str(self._client.create_run(experiment_id, run_name=run.trial, tags=tags).info.run_id)
        run.memory[_RUN] = self._id
        self._log_config(run)

    @staticmethod
    def problem(settings: MlflowConfig) -> str:
        """Look for an address, and for what a local database needs."""
        uri = _uri(settings)
        if not uri:
            return "tracking_uri is empty and there is no MLFLOW_TRACKING_URI; give a server or file:///FOLDER"
        if uri.startswith(("sqlite:", "postgresql:", "mysql:", "mssql:")):
            spec = importlib.util.find_spec("sqlalchemy")
            return "" if spec else f"{uri} needs the whole of MLflow, not mlflow-skinny; run pip install mlflow"
        return ""

    def known(self) -> None:
        """Return None: every value is there when `log` returns."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send all values of the step in one request."""
        now = time.time_ns() // 1_000_000
        kind = self._mlflow.entities.Metric
        values = [kind(_UNUSABLE.sub("_", name), float(value), now, step) for name, value in metrics.items()]
        for start in range(0, len(values), _MAX_METRICS):
            self._client.log_batch(self._id, metrics=values[start : start + _MAX_METRICS])

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write an artifact that MLflow's pages show as a table."""
        path = f"samples/step-{step:06d}.json"
        self._client.log_dict(self._id, {"columns": list(SAMPLE_COLUMNS), "data": [list(row) for row in rows]}, path)
        self._tables.append({"path": path, "type": "table"})
        # The tag is what tells the pages; stores limit its length, and the newest tables matter most.
        self._client.set_tag(self._id, "mlflow.loggedArtifacts", json.dumps(self._tables[-50:]))

    def finish(self, ending: Ending) -> None:
        """Write the summary as tags and end the run as finished, killed or failed."""
        for name, value in {"state": ending.state, "exit_code": ending.exit_code, **ending.summary}.items():
            self._client.set_tag(self._id, f"areal.{name}", str(value))
        self._client.set_terminated(self._id, status=_STATUS[ending.state])

    def _log_config(self, run: TrackedRun) -> None:
        """Write the configuration as parameters, whose length is limited, and whole as an artifact."""
        kind = self._mlflow.entities.Param
        values = [kind(_UNUSABLE.sub("_", key), str(value)[:_MAX_VALUE]) for key, value in run.flat_config().items()]
        for start in range(0, len(values), _MAX_PARAMETERS):
            self._client.log_batch(self._id, params=values[start : start + _MAX_PARAMETERS])
        self._client.log_dict(self._id, dict(run.config), "config.json")


def _uri(settings: MlflowConfig) -> str:
    return settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
