"""Configuration of experiment trackers. A section that is there switches its tracker on; `wandb: {}` is enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class MlflowConfig(Config):
    """A run in an MLflow tracking server or store (needs the `mlflow` extra)."""

    tracking_uri: str = ""
    """Server or store, e.g. http://host:5000, sqlite:////data/mlflow.db, file:///data/mlruns; empty takes the
    environment's MLFLOW_TRACKING_URI."""
    experiment: str = ""
    """Experiment that the run belongs to; empty means experiment_name."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the run."""


@dataclass(frozen=True, kw_only=True)
class PrometheusConfig(Config):
    """HTTP endpoint with the newest value of every metric (needs the `prometheus` extra)."""

    port: int = number(0, at_least=0, at_most=65535)
    """Port of http://HOST:PORT/metrics; 0 takes a free one, which the log names."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines read it, without a login."""


@dataclass(frozen=True, kw_only=True)
class SwanlabConfig(Config):
    """An experiment in SwanLab (needs the `swanlab` extra)."""

    project: str = ""
    """Project of the run; empty means experiment_name."""
    workspace: str = ""
    """Workspace or organisation; empty means that of the login."""
    group: str = ""
    """Group of the run; empty means experiment_name."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "local", "offline"] = "online"
    """online sends to SwanLab; local and offline write below the run directory, offline for `swanlab sync`."""


@dataclass(frozen=True, kw_only=True)
class TensorBoardConfig(Config):
    """Event files in the run directory (needs the `tensorboard` extra)."""

    folder: str = "tensorboard"
    """Folder of the event files, relative to the run directory."""


@dataclass(frozen=True, kw_only=True)
class TrackioConfig(Config):
    """A run in Trackio (needs the `trackio` extra)."""

    project: str = ""
    """Project of the run; empty means experiment_name."""
    group: str = ""
    """Group of the run; empty means experiment_name."""
    space_id: str = ""
    """Hugging Face Space that shows the project, e.g. user/name; empty keeps it on this machine (TRACKIO_DIR)."""


@dataclass(frozen=True, kw_only=True)
class WandbConfig(Config):
    """A run in Weights & Biases (needs the `wandb` extra)."""

    project: str = ""
    """Project of the run; empty means experiment_name."""
    entity: str = ""
    """User or team; empty means that of the login."""
    group: str = ""
    """Group of the run; empty means experiment_name."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["", "online", "offline"] = ""
    """online sends while training, offline writes below the run directory for `wandb sync`; empty takes the
    environment's WANDB_MODE, then online."""


@dataclass(frozen=True, kw_only=True)
class TrackersConfig(Config):
    """Trackers that get a copy of the numbers; null is off, a section (`tensorboard: {}`) is on."""

    mlflow: MlflowConfig | None = None
    """MLflow; null is off."""
    prometheus: PrometheusConfig | None = None
    """Prometheus endpoint; null is off."""
    swanlab: SwanlabConfig | None = None
    """SwanLab; null is off."""
    tensorboard: TensorBoardConfig | None = None
    """TensorBoard; null is off."""
    trackio: TrackioConfig | None = None
    """Trackio; null is off."""
    wandb: WandbConfig | None = None
    """Weights & Biases; null is off."""
    samples_every_steps: int = number(10, at_least=0)
    """Steps between tables of sampled rollouts (those of metrics.rollouts_per_step); 0 sends none."""
