"""Table of trackers: name, which is also the key in `metrics.trackers` and the name of the extra, to its class.

A target is a `Tracker` (see `tracking`). Its module loads without the client, which is imported when a run starts; an
entry has a field of the same name in `TrackersConfig`, which a test checks.
"""

from __future__ import annotations

from typing import Final

TRACKERS: Final[dict[str, str]] = {
    "mlflow": "areal.infra.metrics.trackers.mlflow:MlflowTracker",
    "prometheus": "areal.infra.metrics.trackers.prometheus:PrometheusTracker",
    "swanlab": "areal.infra.metrics.trackers.swanlab:SwanlabTracker",
    "tensorboard": "areal.infra.metrics.trackers.tensorboard:TensorBoardTracker",
    "trackio": "areal.infra.metrics.trackers.trackio:TrackioTracker",
    "wandb": "areal.infra.metrics.trackers.wandb:WandbTracker",
}
