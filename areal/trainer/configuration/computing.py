"""Sets up what a process computes with: its threads, the library of its matrix products, and its memory on CPUs.

The first two change sums in their last digits, so a continued run keeps them, and its checkpoints say what they were.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from areal.engine.precision import accelerator
from areal.trainer.configuration.threads import THREADS, current_threads, keep_threads, start_threads
from areal.utils.freed_memory import keep_freed_memory
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.trainer.config import PPOConfig, RowsConfig

_logger = getLogger(__name__)

PRODUCTS: Final = "matrix_products"
"""Key of the library in the description of a checkpoint."""


def start_computing(config: PPOConfig | RowsConfig) -> None:
    """Choose threads and library, say it in the log, and compute with them."""
    from areal.models.blocks.linear import measure_products, use_products

    start_threads(config)
    on_cpu = (config.actor.device if config.actor.device != "auto" else accelerator() or "cpu") == "cpu"
    if on_cpu:
        keep_freed_memory()
    if config.matrix_products != "auto":
        use_products(config.matrix_products)
        return
    use_products("torch")
    # Of several processes each would measure, and those that compute the same thing have to find the same bits.
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    if processes > 1 or not on_cpu or config.actor.dtype == "bfloat16":
        return
    rates = measure_products()
    use_products(rates.fastest)
    _logger.info(
        "linear layers by %s (one thread: torch %.0f GFLOP/s, oneDNN %.0f); matrix_products sets another library",
        rates.fastest,
        rates.torch,
        rates.onednn,
    )


def keep_computing(config: PPOConfig | RowsConfig, meta: Mapping[str, Any]) -> None:
    """Compute as before a checkpoint, unless the configuration says how. meta: of the checkpoint."""
    from areal.models.blocks.linear import current_products, use_products

    keep_threads(config, meta)
    # What is older than this setting was computed by torch.
    before = meta.get(PRODUCTS, "torch")
    if config.matrix_products == "auto" and before != current_products():
        _logger.info("linear layers by %s, as before the checkpoint", before)
        use_products(before)


def computing() -> dict[str, Any]:
    """Return what a checkpoint says of how its run computes."""
    from areal.models.blocks.linear import current_products

    return {THREADS: current_threads(), PRODUCTS: current_products()}
