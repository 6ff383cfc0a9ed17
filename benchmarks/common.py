"""What stand-alone benchmarks share: bounded threads, alternating timing, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def set_thread_environment(threads: int) -> None:
    """Bound the thread pools; call before torch is imported.

    Waiting threads sleep instead of spinning, or the two sides would steal each other's cores.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def alternate(
    sides: Mapping[str, Callable[[], int]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, dict[str, float]]:
    """Run the sides in turn, `rounds` times each after one warm-up, so that a slow minute of the machine hits all.

    Each side returns how many tokens it produced. Per side: median, minimum and maximum tokens per second over the
    rounds. clock: `time.process_time` counts this process's processor seconds, which other load disturbs less.
    """
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            started = clock()
            tokens = run()
            if number:
                rates[name].append(tokens / (clock() - started))
    return {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for name, values in rates.items()
    }


def machine() -> dict[str, Any]:
    """Where figures come from; load_average says how far to trust them."""
    import torch

    return {
        "cpus": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
