"""Muon: momentum whose matrices are made nearly orthogonal, so that every direction of an update has the same size.

The state is one momentum per parameter. Stacks of matrices, as experts have them, are taken matrix by matrix. How whole
matrices come together is not known here: see `Orthogonalise`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial of degree 5 that is applied to the singular values, steep at 0 (Jordan et al., 2024)."""
_ROUNDS: Final = 5
_SMALLEST_NORM: Final = 1e-7
_RMS: Final = 0.2
"""Root mean square of an update of AdamW, which orthogonal matrices are scaled to (arXiv 2502.16982)."""


class Orthogonalise(Protocol):
    """Replaces updates by what `orthogonal` makes of the whole matrices they are, or are parts of."""

    def __call__(self, updates: Mapping[str, Tensor], /) -> None:
        """Orthogonalise updates, by the name of their parameter, in place."""
        ...


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled weight decay; updates are scaled to the size of AdamW's."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        shapes: Mapping[str, Sequence[int]],
        orthogonalise: Orthogonalise,
        lr: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        """parameters: whole or in parts; shapes: of the whole ones."""
        super().__init__(list(parameters.values()), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._names = dict(parameters)
        self._scales = {name: _RMS * math.sqrt(max(shapes[name][-2:])) for name in parameters}
        self._orthogonalise = orthogonalise

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no step evaluates the model again
        """Update what has a gradient; the gradients are used up."""
        assert closure is None, "a step does not evaluate the model"
        group = self.param_groups[0]
        updates: dict[str, Tensor] = {}
        for name, parameter in self._names.items():
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum: Tensor = state["momentum_buffer"]
            momentum.lerp_(parameter.grad, 1 - group["momentum"])
            updates[name] = parameter.grad.lerp_(momentum, group["momentum"])
        self._orthogonalise(updates)
        for name, update in updates.items():
            parameter = self._names[name]
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * self._scales[name])


class OrthogonaliseHere:
    """For whole matrices of this process; computed on `device`, wherever they are kept."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, updates: Mapping[str, Tensor], /) -> None:
        """One parameter after the other."""
        for update in updates.values():
            update.copy_(orthogonal(update.to(self._device, working_dtype(update))))


def working_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype to compute in: bfloat16 suffices, but float64 is for checks."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.bfloat16


def orthogonal(matrices: Tensor) -> Tensor:
    """[..., rows, columns] -> the same singular vectors with values in about 0.7 .. 1.2; those that are 0 stay 0."""
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    turned = matrices.mT if is_tall else matrices
    multiply_add = torch.addmm if turned.ndim == 2 else torch.baddbmm
    turned = turned / turned.norm(dim=(-2, -1), keepdim=True).clamp(min=_SMALLEST_NORM)
    for _ in range(_ROUNDS):
        gram = turned @ turned.mT
        turned = multiply_add(turned, multiply_add(gram, gram, gram, beta=b, alpha=c), turned, beta=a)
    return turned.mT if is_tall else turned
