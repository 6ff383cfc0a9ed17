"""Record chosen training steps: a trace of everything that works together, and a profile of the trainer's operations.

    windows = StepWindows(config.metrics, run_dir)
    windows.begin(10)
    ...
    windows.end(10)

Neither may end a run: what cannot be recorded is announced once and left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from areal.utils import tracing
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from pathlib import Path

    from areal.infra.metrics.config import MetricsConfig, ProfileConfig

logger = getLogger(__name__)

TRACE_FOLDER: Final = "trace"
PROFILE_FOLDER: Final = "profile"


class StepWindows:
    """Starts and ends the recordings that a run asks for. The trainer's loop is the only caller."""

    def __init__(self, config: MetricsConfig, directory: Path) -> None:
        self._trace, self._profile = config.trace, config.profile
        self._directory = directory
        self._profiler: Any = None
        self._began = self._step = 0

    def begin(self, step: int) -> None:
        """Note that step number `step`, counted from 1, is about to begin."""
        self._step = step
        if self._trace is not None and self._trace.steps[0] <= step <= self._trace.steps[1]:
            if not tracing.active():
                self._start_trace(step)
            self._began = time.perf_counter_ns()
        profile = self._profile
        if profile is not None and self._profiler is None and step in profile.covered:
            self._start_profile(profile)

    def end(self, step: int) -> None:
        """Note that it is over."""
        if self._trace is not None and tracing.active() and self._began:
            tracing.complete(f"step {step}", self._began, time.perf_counter_ns(), step=step)
            tracing.flush()
            if step >= self._trace.steps[1]:
                tracing.stop()
                logger.info("steps %d to %d are traced; open the file in ui.perfetto.dev", *self._trace.steps)
        if self._profile is not None and self._profiler is not None and step + 1 not in self._profile.covered:
            self._finish_profile(step)

    def close(self) -> None:
        """End what is being recorded: the run stops inside a window. Idempotent."""
        if self._trace is not None:
            tracing.stop()
        if self._profiler is not None:
            self._finish_profile(self._step)

    def _start_trace(self, step: int) -> None:
        path = _free(self._directory / TRACE_FOLDER, f"step-{step:06d}", ".json")
        try:
            tracing.start(path)
        except (OSError, RuntimeError) as error:
            logger.warning("metrics.trace: nothing is recorded (%s)", error)
            self._trace = None

    def _start_profile(self, profile: ProfileConfig) -> None:
        from torch.profiler import profile as build
        from torch.profiler import supported_activities

        try:
            self._profiler = build(
                activities=list(supported_activities()),
                record_shapes=profile.shapes,
                profile_memory=profile.memory,
                with_stack=profile.stacks,
            )
            self._profiler.start()
        except Exception as error:  # noqa: BLE001 - a profiler that cannot start must not end the run
            self._give_up("start", error)

    def _finish_profile(self, step: int) -> None:
        assert self._profile is not None
        first = max(self._profile.start_step, step - self._profile.steps + 1)
        profiler, self._profiler = self._profiler, None
        folder = self._directory / PROFILE_FOLDER
        try:
            profiler.stop()
            folder.mkdir(parents=True, exist_ok=True)
            target = _free(folder, f"steps-{first:06d}-{step:06d}", ".json.gz")
            temporary = folder / f".{target.name}.tmp.json.gz"
            profiler.export_chrome_trace(str(temporary))
            temporary.replace(target)
            table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=50)
            target.with_name(target.name.removesuffix(".json.gz") + ".txt").write_text(table + "\n", encoding="utf-8")
            logger.info("%s has the profile of steps %d to %d; open it in ui.perfetto.dev", target, first, step)
        except Exception as error:  # noqa: BLE001 - nor one that cannot be written
            self._give_up("write", error)

    def _give_up(self, what: str, error: Exception) -> None:
        logger.warning("metrics.profile: cannot %s a profile (%s: %s)", what, type(error).__name__, error)
        self._profile = self._profiler = None


def _free(folder: Path, stem: str, suffix: str) -> Path:
    """Return a path that no earlier attempt at the same steps has taken."""
    names = (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}" for number in range(1, 10_000))
    return next(folder / name for name in names if not (folder / name).exists())
