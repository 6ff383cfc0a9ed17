"""Optional further destinations of metrics. Their failure is announced once and never stops a run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from areal.infra.metrics.config import MetricsConfig

logger = getLogger(__name__)


class Sink(Protocol):
    """Somewhere numbers go, beside metrics.jsonl."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the values of a step."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class TensorBoardSink:
    """Event files in `<run_dir>/tensorboard`, written by the tensorboard package alone (no torch)."""

    def __init__(self, run_dir: Path) -> None:
        writer = importlib.import_module("tensorboard.summary").Writer
        self._writer: Any = writer(str(run_dir / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink:
    """A Weights & Biases run; where it logs to and whether it is online is wandb's own configuration."""

    def __init__(self, run_dir: Path, project: str) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(project=project, dir=str(run_dir), name=run_dir.name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One call per step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class GuardedSink:
    """A sink that is switched off, with one warning, as soon as it fails for any reason."""

    def __init__(self, name: str, build: Callable[[], Sink]) -> None:
        self._name = name
        self._sink: Sink | None = None
        self._attempt("start", lambda: setattr(self, "_sink", build()))

    @property
    def active(self) -> bool:
        """Whether values still reach the sink."""
        return self._sink is not None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the values on, if the sink still works."""
        sink = self._sink
        if sink is not None:
            self._attempt("log", lambda: sink.log(step, metrics))

    def close(self) -> None:
        """Release the sink."""
        sink, self._sink = self._sink, None
        if sink is not None:
            self._attempt("close", sink.close)

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 -- third-party backends raise anything; a run must outlive all of it
            self._sink = None
            logger.warning(
                "%s failed to %s and is switched off for this run (%s: %s); metrics.jsonl is complete without it",
                self._name,
                what,
                type(error).__name__,
                error,
            )


def optional_sinks(run_dir: Path, config: MetricsConfig) -> list[GuardedSink]:
    """The sinks a configuration asks for."""
    sinks = []
    if config.tensorboard:
        sinks.append(GuardedSink("TensorBoard", lambda: TensorBoardSink(run_dir)))
    if config.wandb_project:
        sinks.append(GuardedSink("Weights & Biases", lambda: WandbSink(run_dir, config.wandb_project)))
    return sinks
