"""Updates of the shards that a rank holds: one norm for the whole model, one decision for all ranks.

AdamW and SGD update a value by nothing but its own gradient, so every rank updates its shards as plain tensors; Muon
needs whole matrices, which ranks compute for each other (`areal.engine.archon.matrices`). The numbers are those of
`areal.engine.train.optimizer.MasterOptimizer`: parameters in float32 or float64 are updated directly; for bfloat16 the
shards are the float32 masters, and what is computed with is rounded from them by FSDP2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from areal.api import EngineError
from areal.engine.archon.matrices import OrthogonaliseTogether
from areal.engine.train.muon import OrthogonaliseHere
from areal.engine.train.optimizer import HOST, token_parameters
from areal.engine.train.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.engine.train.config import TrainEngineConfig
    from areal.engine.train.muon import Orthogonalise
    from areal.models.parallel.meshes import Meshes


class ShardedOptimizer:
    """Updates the trainable parameters of a sharded model."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainEngineConfig,
        meshes: Meshes,
        *,
        partial_over_tp: Iterable[str],
        copies: Iterable[str] = (),
    ) -> None:
        """partial_over_tp: parameters whose gradients `sum_partial` completes; copies: those that another rank of the
        pipeline has as well, with the same gradients, and counts."""
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not self.parameters:
            raise EngineError("this rank has no trainable parameter; unfreeze some, or use fewer pipeline ranks")
        self._meshes = meshes
        self._max_grad_norm = config.max_grad_norm
        self._copies = frozenset(copies)
        self._partial = sorted(set(partial_over_tp) & set(self.parameters))
        # They share their memory with the model's parameters.
        self.shards = {name: local_data(parameter) for name, parameter in self.parameters.items()}
        # Where ranks communicate; the shards may be in host memory.
        self._device = meshes.device
        self._updates = Updates(
            self.shards,
            config,
            whole=self.parameters,
            tokens=token_parameters(model),
            orthogonalise=self._orthogonalise,
            dtype=next(iter(self.shards.values())).dtype,
            home=HOST if config.offload_optimizer else None,
        )

    @property
    def num_values(self) -> int:
        """Trained values of this rank."""
        return sum(shard.numel() for shard in self.shards.values())

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

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
        summed = torch.cat([term.flatten() for term in terms]).to(self._device)
        dist.all_reduce(summed, group=self._meshes.group("tp"))
        for term, piece in zip(terms, summed.split([term.numel() for term in terms]), strict=True):
            term.copy_(piece.view_as(term))

    def gradient_norm(self) -> float:
        """L2 norm over the gradients of the whole model, the same on every rank; NaN when any entry is not finite."""
        totals: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)
        for name, parameter in self.parameters.items():
            if name in self._copies:
                continue
            # A gradient exists on all ranks or on none, so that every rank adds up over the same groups.
            groups = _groups_of_shards(parameter)
            if parameter.grad is not None:
                totals[groups].append(local_data(parameter.grad))
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        # In the order of the parameters, which ranks of a group share: nobody may wait for another sum than the others.
        for groups, gradients in totals.items():
            square = torch.stack(torch._foreach_norm(gradients)).double().square().sum().to(self._device)
            for group in groups:
                dist.all_reduce(square, group=group)
            total += square
        if self._meshes.pp.size() > 1:
            dist.all_reduce(total, group=self._meshes.group("pp"))
        return agree(float(total.sqrt()), self._device)

    def step(self, lr: float, gradient_norm: float) -> None:
        """Clip by the given norm of the current gradients, update with learning rate `lr`, and forget the gradients."""
        gradients = {
            name: local_data(parameter.grad)
            for name, parameter in self.parameters.items()
            if parameter.grad is not None
        }
        if gradients and 0 < self._max_grad_norm < gradient_norm:
            torch._foreach_mul_(list(gradients.values()), self._max_grad_norm / gradient_norm)
        self._updates.step(gradients, lr)
        self.zero_grad()

    def moments(self, name: str) -> dict[str, Tensor]:
        """State of one parameter's shard; {} before the first step."""
        return self._updates.moments(name)

    def set_moments(self, name: str, moments: Mapping[str, Tensor]) -> None:
        """Inverse of `moments`, from copies of them; {} forgets."""
        self._updates.set_moments(name, moments)

    def check_moments(self, name: str, moments: Iterable[str]) -> None:
        """Raise EngineError when the moments of these names are those of another optimizer."""
        self._updates.check_moments(name, moments)

    def follow(self) -> None:
        """After somebody else changed the parameters."""
        self._updates.follow()

    def _orthogonalise(self, names: Sequence[str]) -> Orthogonalise:
        if dist.get_world_size() == 1:
            return OrthogonaliseHere(self._device)
        turned = {name: self.parameters[name] for name in names}
        return OrthogonaliseTogether(turned, _piece_group(self._meshes), device=self._device)


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


def _piece_group(meshes: Meshes) -> ProcessGroup:
    """The ranks that share this rank's piece of the model."""
    if meshes.pp.size() == 1:
        whole = dist.group.WORLD
        assert whole is not None, "engines are made by connected processes"
        return whole
    names = meshes.root.mesh_dim_names
    assert names is not None, "see build_meshes"
    return meshes.root[tuple(name for name in names if name != "pp")]._flatten("piece").get_group()
