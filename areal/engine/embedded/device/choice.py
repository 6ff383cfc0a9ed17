"""Which batch decodes a model: on an accelerator the one whose steps stay there, where the model allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.engine.embedded.batch import DecodeBatch
from areal.engine.embedded.device.batch import DeviceBatch
from areal.models.blocks.rg_lru import RGLRU
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch

    from areal.engine.embedded.device.graphs import GraphMode

_logger = getLogger(__name__)


def make_batch(
    model: Any,
    *,
    device: torch.device,
    guard: Callable[[], AbstractContextManager[Any]],
    kernel: str,
    cuda_graphs: GraphMode,
    record_routes: bool,
    **options: Any,
) -> DecodeBatch | DeviceBatch:
    """Make what an engine decodes with; options: as both batches have them. guard, kernel: see `DecodeBatch`.

    Raises ConfigError where cuda_graphs is "on" and steps cannot stay on the device.
    """
    reason = _obstacle(model, device, record_routes=record_routes)
    if not reason:
        return DeviceBatch(model, device=device, graphs=cuda_graphs, **options)
    if cuda_graphs == "on":
        raise ConfigError(f"engine.cuda_graphs is 'on', but {reason}; set it to 'auto'")
    if device.type == "cuda":
        _logger.info("every token is read before the next one is computed: %s", reason)
    return DecodeBatch(model, device=device, guard=guard, kernel=kernel, record_routes=record_routes, **options)


def _obstacle(model: Any, device: torch.device, *, record_routes: bool) -> str:
    """Why steps cannot stay on the device; empty if they can."""
    if device.type != "cuda":
        return f"the engine computes on {device.type!r}"
    if record_routes:
        return "the experts that routers choose are recorded token by token (actor.router_replay)"
    if any(getattr(module, "indexer", None) is not None for module in model.modules()):
        return "the model has layers that choose the keys they attend to"
    if any(isinstance(module, RGLRU) for module in model.modules()):
        return "the model has layers that treat the first token of a sequence apart"
    return ""
