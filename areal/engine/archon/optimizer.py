"""AdamW over the shards that a rank holds: one norm for the whole model, one decision for all ranks.

The update of a value depends on nothing but its own gradient, so every rank updates its shards as plain tensors. The
numbers are those of `areal.engine.train.optimizer.MasterOptimizer`: parameters in float32 or float64 are updated
directly; for bfloat16 the shards are the float32 masters, and what is computed with is rounded from them by FSDP2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from areal.api import ConfigError, EngineError
from areal.engine.train.optimizer import is_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.engine.train.config import TrainEngineConfig
    from areal.models.parallel.meshes import Meshes


class ShardedAdamW:
    """Updates the trainable parameters of a sharded model."""

    def __init__(
        self, model: nn.Module, config: TrainEngineConfig, meshes: Meshes, *, partial_over_tp: Iterable[str]
    ) -> None:
        """partial_over_tp: parameters whose gradients `sum_partial` completes. ConfigError for another optimizer."""
        if config.optimizer != "adamw":
            raise ConfigError(
                f"optimizer {config.optimizer!r} needs whole matrices, of which each rank here has a part; use adamw"
            )
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not self.parameters:
            raise EngineError("this rank has no trainable parameter; unfreeze some, or use fewer pipeline ranks")
        self._meshes = meshes
        self._max_grad_norm = config.max_grad_norm
        self._partial = sorted(set(partial_over_tp) & set(self.parameters))
        # They share their memory with the model's parameters.
        self.shards = {name: nn.Parameter(local_data(parameter)) for name, parameter in self.parameters.items()}
        decayed = [shard for name, shard in self.shards.items() if is_matrix(name, self.parameters[name])]
        others = [shard for name, shard in self.shards.items() if not is_matrix(name, self.parameters[name])]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            fused=True,
        )

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for name, parameter in self.parameters.items():
            parameter.grad = None
            self.shards[name].grad = None

    def sum_partial(self) -> None:
        """Complete gradients that are terms of a sum over tp; once, after all backward passes of a step."""
        if not self._partial:
            return
        terms = []
        for name in self._partial:
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            terms.append(local_data(parameter.grad))
        summed = torch.cat([term.flatten() for term in terms])
        dist.all_reduce(summed, group=self._meshes.group("tp"))
        for term, piece in zip(terms, summed.split([term.numel() for term in terms]), strict=True):
            term.copy_(piece.view_as(term))

    def gradient_norm(self) -> float:
        """L2 norm over the gradients of the whole model, the same on every rank; NaN when any entry is not finite."""
        totals: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)
        for parameter in self.parameters.values():
            # A gradient exists on all ranks or on none, so that every rank adds up over the same groups.
            groups = _groups_of_shards(parameter)
            if parameter.grad is not None:
                totals[groups].append(local_data(parameter.grad))
        device = next(iter(self.shards.values())).device
        total = torch.zeros((), dtype=torch.float64, device=device)
        # In the order of the parameters, which ranks of a group share: nobody may wait for another sum than the others.
        for groups, gradients in totals.items():
            square = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
            for group in groups:
                dist.all_reduce(square, group=group)
            total += square
        if self._meshes.pp.size() > 1:
            dist.all_reduce(total, group=self._meshes.group("pp"))
        return agree(float(total.sqrt()), device)

    def step(self, lr: float, gradient_norm: float) -> None:
        """Clip by the given norm of the current gradients, update with learning rate `lr`, and forget the gradients."""
        for name, parameter in self.parameters.items():
            self.shards[name].grad = None if parameter.grad is None else local_data(parameter.grad)
        gradients = [shard.grad for shard in self.shards.values() if shard.grad is not None]
        if gradients and 0 < self._max_grad_norm < gradient_norm:
            torch._foreach_mul_(gradients, self._max_grad_norm / gradient_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self.zero_grad()

    def moments(self, name: str) -> dict[str, Tensor]:
        """State of one parameter's shard; {} before the first step."""
        found: dict[str, Tensor] = self._optimizer.state.get(self.shards[name], {})
        return found

    def set_moments(self, name: str, moments: Mapping[str, Tensor]) -> None:
        """Inverse of `moments`; {} forgets."""
        if moments:
            self._optimizer.state[self.shards[name]] = dict(moments)
        else:
            self._optimizer.state.pop(self.shards[name], None)


def local_data(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, sharing its memory, without gradient."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def agree(number: float, device: torch.device) -> float:
    """One number for all ranks: the largest, or NaN when any is not finite."""
    finite = math.isfinite(number)
    found = torch.tensor([number if finite else 0.0, 0.0 if finite else 1.0], dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return math.nan if found[1] else float(found[0])


def _groups_of_shards(parameter: Tensor) -> tuple[ProcessGroup, ...]:
    """Groups over which the squares of a parameter's gradient add up; () where every rank has all of it."""
    if not isinstance(parameter, DTensor):
        return ()
    placements = enumerate(parameter.placements)
    return tuple(
        parameter.device_mesh.get_group(dim) for dim, placement in placements if not isinstance(placement, Replicate)
    )
