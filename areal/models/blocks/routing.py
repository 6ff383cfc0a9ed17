"""Records which experts the routers of a model chose, and makes them choose the same ones again.

A token whose two best experts score nearly alike may get one of them while it is sampled and the other one in training,
where other kernels round differently. Its log-probability then jumps, in low precision for many tokens. Replaying the
recorded experts in training removes that (rollout routing replay, arXiv 2510.11370): the weights of the experts, and so
the gradient of the router, are still those of the trained parameters.

    recorder = RouteRecorder()
    model.hidden(tokens, ..., routes=recorder)            # routers choose freely
    routes = recorder.routes(count_experts(model.layers))  # uint8 [T, M, K]
    model.hidden(tokens, ..., routes=RouteReplay(routes))  # the same experts, whatever the scores are now

Shape letters: T tokens, M routers of the model, K experts per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from areal.models.blocks.moe import Router
from areal.utils.routes import route_dtype, unrecorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn

    from areal.api import ExpertRoutes


class RouteRecorder:
    """Lets routers choose, and remembers it. Make one per forward."""

    def __init__(self) -> None:
        self._chosen: dict[int, Tensor] = {}

    def settle(self, number: int, chosen: Tensor) -> Tensor:
        """See `ExpertRoutes.settle`."""
        self._chosen[number] = chosen
        return chosen

    def routes(self, num_experts: int) -> Tensor:
        """Return uint8 or int16 [T, M, K]; where a router takes fewer experts than another one, the rest is
        `unrecorded`."""
        dtype = route_dtype(num_experts)
        width = max(chosen.shape[1] for chosen in self._chosen.values())
        found = [
            functional.pad(chosen.to(dtype), (0, width - chosen.shape[1]), value=unrecorded(dtype))
            for _, chosen in sorted(self._chosen.items())
        ]
        return torch.stack(found, dim=1)


class RouteReplay:
    """Gives routers the experts that were recorded. Tokens without a record, such as padding, choose freely."""

    def __init__(self, routes: Tensor) -> None:
        """routes: uint8 or int16 [T, M, K]."""
        self._routes = routes

    def settle(self, number: int, chosen: Tensor) -> Tensor:
        """See `ExpertRoutes.settle`."""
        recorded = self._routes[:, number, : chosen.shape[1]].long()
        known = (recorded != unrecorded(self._routes.dtype)).all(-1, keepdim=True)
        return torch.where(known, recorded, chosen)


def number_routers(layers: Iterable[nn.Module]) -> tuple[range, ...]:
    """Numbers of each layer's routers, counted through the whole model."""
    found, first = [], 0
    for layer in layers:
        count = len(routers_of(layer))
        found.append(range(first, first + count))
        first += count
    return tuple(found)


def routers_of(layer: nn.Module) -> list[Router]:
    """Return the routers inside a layer, in order of definition."""
    return [module for module in layer.modules() if isinstance(module, Router)]


def count_experts(layers: Iterable[nn.Module]) -> int:
    """Return the most experts that a router chooses among; 0 without a router."""
    return max((router.weight.shape[0] for layer in layers for router in routers_of(layer)), default=0)


def call_routed(layer: nn.Module, numbers: Sequence[int], routes: ExpertRoutes, *arguments: Any) -> Tensor:
    """Call a layer whose routers have these numbers.

    A function of its arguments alone, so that a layer which is computed again in the backward pass, when other
    micro-batches may have gone through it, gets the routes of its own one.
    """
    routers = routers_of(layer)
    for router, number in zip(routers, numbers, strict=True):
        router.routes = (routes, number)
    try:
        output: Tensor = layer(*arguments)
    finally:
        for router in routers:
            router.routes = None
    return output
