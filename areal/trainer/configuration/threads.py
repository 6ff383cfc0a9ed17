"""Choose the number of threads of a process from its share of the machine and the size of the model.

Threads that wait for each other in every small operation cost more than they bring, above all where other programs run
on the same CPUs: the operation waits for its slowest thread. So a small model gets one thread, and a larger one no more
than the CPUs that are free when the run starts. A continued run keeps the number it had, since sums depend on it in
their last digits.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.engine.precision import accelerator
from areal.hub.download import METADATA, local_folder
from areal.trainer.configuration.memory import model_shape
from areal.trainer.configuration.validation import read_model_config
from areal.utils.logging import getLogger
from areal.utils.machine import CpuShare, cpu_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.trainer.config import ModelConfig, PPOConfig, RowsConfig

_logger = getLogger(__name__)

PARAMETERS_PER_THREAD: Final = 4_000_000
"""A thread for each of so many parameters, on CPUs: with fewer, its part of a matrix product is over sooner than the
other threads are woken."""
THREADS: Final = "threads"
"""Key of the number in the description of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Number of threads for operations of one process, and why."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.number} thread{'s' if self.number != 1 else ''} ({self.reason})"


def threads_of(config: PPOConfig | RowsConfig, share: CpuShare | None = None) -> Threads:
    """Return what a run computes with. share: of the CPUs; None asks the system. Loads no torch without accelerator.

    The first of these that is set decides: `num_threads`, the environment's OMP_NUM_THREADS, the choice of this module.
    """
    if config.num_threads:
        return Threads(number=config.num_threads, reason="num_threads")
    variable = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if variable.isdecimal() and int(variable):
        return Threads(number=int(variable), reason="OMP_NUM_THREADS in the environment")
    on_cpu = (config.actor.device if config.actor.device != "auto" else accelerator() or "cpu") == "cpu"
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    parameters = num_parameters(config.model) if on_cpu else None
    return choose_threads(share or cpu_share(), parameters=parameters, processes=processes)


def choose_threads(share: CpuShare, *, parameters: int | None, processes: int) -> Threads:
    """Return the number for one of `processes` on this machine. parameters: of the model where it is computed on CPUs;
    None where its size does not matter or is unknown.

    Several processes of a run do not look at the load, which they are themselves.
    """
    available = share.free if processes == 1 else max(1, share.usable // processes)
    what = f"{share.usable} of {share.total} cores usable"
    if share.free < share.usable and processes == 1:
        what += f", {share.free} free at a load of {share.load:.1f}"
    if processes > 1:
        what += f", {processes} processes"
    if parameters is not None:
        worthwhile = max(1, parameters // PARAMETERS_PER_THREAD)
        if worthwhile < available:
            size = f"{parameters / 1e6:.2g}M" if parameters < 1e9 else f"{parameters / 1e9:.2g}B"
            more = "more" if worthwhile > 1 else "a second one"
            return Threads(number=worthwhile, reason=f"{more} would slow down a model of {size} parameters; {what}")
    return Threads(number=available, reason=what)


def num_parameters(model: ModelConfig) -> int | None:
    """Parameters of a model, from its configuration or the size of its files; None when neither tells."""
    try:
        shape = model_shape(read_model_config(model))
    except ConfigError:
        return None  # whatever is wrong is said where the model is loaded
    if not isinstance(shape, str):
        return shape.num_parameters
    files = local_folder(model.path, METADATA).glob("*.safetensors") if model.path else ()
    # Stored in two bytes each, mostly; a factor of two does not matter here.
    return sum(file.stat().st_size for file in files) // 2 or None


def configure_threads(number: int) -> None:
    """Let this process compute with `number` threads (0 changes nothing), and let Python threads take turns quickly."""
    if number:
        import torch

        torch.set_num_threads(number)
    # The trainer and the rollout loop share the interpreter. With Python's default of 5 ms, a trainer that returns from
    # a matrix product of 0.5 ms waits ten times as long for its turn while the loop handles finished episodes.
    sys.setswitchinterval(0.001)


def current_threads() -> int:
    """Return the number that operations of this thread are divided over."""
    import torch

    return torch.get_num_threads()


def start_threads(config: PPOConfig | RowsConfig) -> None:
    """Choose the number, say it in the log, and compute with it."""
    chosen = threads_of(config)
    _logger.info("computing with %s; num_threads sets another number", chosen)
    configure_threads(chosen.number)


def keep_threads(config: PPOConfig | RowsConfig, meta: Mapping[str, Any]) -> None:
    """Compute with as many threads as before a checkpoint, unless the configuration says how many. meta: of the
    checkpoint."""
    before = meta.get(THREADS)
    if config.num_threads or not isinstance(before, int) or before == current_threads():
        return
    # More than there are would be slower still than other last digits are bad.
    if before <= cpu_share().usable:
        _logger.info("computing with %d threads, as before the checkpoint", before)
        configure_threads(before)
