"""What follows from the metrics of a step: models exported while a run goes on, and an end before the last step.

    runs/math/grpo/exports/step-00000040/    a Hugging Face folder
    runs/math/grpo/exports/exports.json      {"metric": "eval/test/avg@1", "best": 40, "exports": [{"step": 40, ...}]}

Exports are described by exports.json alone, which is written after a folder is complete and before others are removed:
it is right whenever a process is killed. How long a run has waited for an improvement is part of its checkpoints, so a
continued run ends where an uninterrupted one does.
"""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, Any, Final

from areal.utils.atomic import atomic_write, remove_leftovers
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from areal.trainer.evaluation_config import EarlyStopConfig, ExportConfig

_logger = getLogger(__name__)
FINAL: Final = "final"
"""Folder of a run with its trained model."""
EXPORTS: Final = "exports"
INDEX: Final = "exports.json"


def export_folder(run: Path, step: int) -> Path:
    """Return the folder of the model of a step."""
    return run / EXPORTS / f"step-{step:08d}"


def adapter_folder(folder: Path) -> Path:
    """Return where adapters alone are written: beside the merged model; of final/ it is adapter/."""
    return folder.with_name("adapter" if folder.name == FINAL else f"{folder.name}-adapter")


def is_better(value: float, best: float, *, mode: str, by: float = 0.0) -> bool:
    """Return whether a value is better than the best so far, by more than `by`."""
    return value > best + by if mode == "max" else value < best - by


class RunExports:
    """Models that a run exports by steps and by a metric, and which of them stay."""

    def __init__(self, directory: Path, config: ExportConfig, *, first_step: int) -> None:
        """directory: of the run. first_step: finished steps it continues from; what was exported later by steps alone
        is removed, since the run is about to get there again.
        """
        self._run, self._config = directory, config
        self._entries: dict[int, dict[str, Any]] = {}
        self._removed: set[str] = set()
        """Names of folders that are no longer wanted and may still be there."""
        self._written: set[int] = set()
        """Steps whose model this process has written: they need not be written again for another metric."""
        folder = directory / EXPORTS
        if not folder.is_dir():
            return
        remove_leftovers(folder)
        stored = _read(folder / INDEX)
        for entry in stored.get("exports", ()):
            if stored.get("metric") != config.best_metric:
                entry["value"] = None
            self._entries[int(entry["step"])] = entry
        self._removed = {str(name) for name in stored.get("removed", ())}
        self._forget({step for step in self._entries if step > first_step and step != self.best})
        self._write_index()
        self._remove()

    @property
    def best(self) -> int | None:
        """Step of the best model; None while none was measured."""
        measured = {step: entry["value"] for step, entry in self._entries.items() if entry["value"] is not None}
        if not measured:
            return None
        choose = max if self._config.mode == "max" else min
        return choose(sorted(measured), key=lambda step: measured[step])

    def after_step(self, step: int, metrics: Mapping[str, float], export: Callable[[Path], None]) -> None:
        """Export the model after `step` when that is due. A disk that refuses is reported and ends no training."""
        config = self._config
        value = metrics.get(config.best_metric) if config.best_metric else None
        value = value if value is not None and math.isfinite(value) else None
        best = self.best
        is_best = value is not None and (
            best is None or is_better(value, self._entries[best]["value"], mode=config.mode)
        )
        is_regular = bool(config.every_steps) and step % config.every_steps == 0
        if not (is_best or is_regular):
            return
        folder = export_folder(self._run, step)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if step not in self._written:
                export(folder)
                self._written.add(step)
            regular = is_regular or self._entries.get(step, {}).get("regular", False)
            self._entries[step] = {"step": step, "folder": folder.name, "regular": regular, "value": value}
            regulars = [known for known, entry in sorted(self._entries.items()) if entry["regular"]]
            self._forget(self._entries.keys() - {self.best, *regulars[-config.keep :]})
            self._removed.discard(folder.name)
            self._write_index()
        except OSError as error:
            _logger.error("the model of step %d was not exported; training goes on: %s", step, error)  # noqa: TRY400 - the message says it all
            return
        self._remove()
        if is_best:
            _logger.info("exported %s: %s is %.4g, the best so far", folder, config.best_metric, value)

    def summary(self) -> dict[str, Any] | None:
        """Return what is there, for the summary of a run; None when nothing is."""
        if not self._entries:
            return None
        best = self.best
        return {
            "folders": [str(export_folder(self._run, step)) for step in sorted(self._entries)],
            "best": None
            if best is None
            else {"step": best, "folder": str(export_folder(self._run, best)), "value": self._entries[best]["value"]},
        }

    def _forget(self, steps: Iterable[int]) -> None:
        for step in list(steps):
            self._removed.add(self._entries.pop(step)["folder"])

    def _write_index(self) -> None:
        document = {
            "metric": self._config.best_metric,
            "best": self.best,
            "exports": [self._entries[step] for step in sorted(self._entries)],
            "removed": sorted(self._removed),
        }
        atomic_write(self._run / EXPORTS / INDEX, json.dumps(document, indent=2) + "\n")

    def _remove(self) -> None:
        """Remove what the index does not want any more; what is left after a kill goes the next time."""
        for name in sorted(self._removed):
            folder = self._run / EXPORTS / name
            for place in (folder, adapter_folder(folder)):
                shutil.rmtree(place, ignore_errors=True)


class EarlyStop:
    """Counts values in a row without an improvement."""

    def __init__(self, config: EarlyStopConfig, state: Mapping[str, Any] | None = None) -> None:
        """state: what `state_dict` returned; of another metric or mode it is not used."""
        self._config = config
        self._best: float | None = None
        self._waited = 0
        if state and (state["metric"], state["mode"]) == (config.metric, config.mode):
            self._best, self._waited = state["best"], int(state["waited"])

    @property
    def stopped(self) -> bool:
        """Whether the run should end."""
        return self._waited >= self._config.patience

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare the watched metric of a step, if it has it, with the best one. NaN counts as worse."""
        config = self._config
        if config.metric not in metrics:
            return
        value = metrics[config.metric]
        if math.isfinite(value) and (
            self._best is None or is_better(value, self._best, mode=config.mode, by=config.min_delta)
        ):
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self.stopped:
            message = "early stop after step %d: %s has not improved on %s for %d values"
            _logger.info(message, step, config.metric, self._best, self._waited)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        watched = {"metric": self._config.metric, "mode": self._config.mode}
        return {**watched, "best": self._best, "waited": self._waited}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
