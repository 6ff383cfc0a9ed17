"""Position-wise feed-forward layers, their activations, and the transform that some models have before the head."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn import functional

from areal.api import ModelError
from areal.models.blocks.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Activation = Callable[[Tensor], Tensor]


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)) (arXiv 2002.05202); SwiGLU with the default activation.

    clamp: gate is limited from above and up on both sides, before anything else. up_offset: added to up. gpt-oss has
    activation="quick_gelu", clamp=7.0, up_offset=1.0. multipliers: of what gate and down give (Falcon-H1).
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        output_bias: bool | None = None,
        clamp: float | None = None,
        up_offset: float = 0.0,
        inner_norm: nn.Module | None = None,
        learned_activation: bool = False,
        multipliers: Sequence[float] = (1.0, 1.0),
    ) -> None:
        """bias: of gate and up; output_bias: of down, None for the same. inner_norm: of what down reads (BitNet).
        learned_activation: whether the activation may have parameters, "activation.*". ModelError for an unknown one,
        and unless there are two multipliers."""
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias if output_bias is None else output_bias)
        self.activation = find_activation(activation, learned=learned_activation)
        self.clamp = clamp
        self.up_offset = up_offset
        self.inner_norm = inner_norm
        if len(multipliers) != 2:
            raise ModelError(f"{len(multipliers)} multipliers, expected one of gate_proj and one of down_proj")
        self.gate_multiplier, self.output_multiplier = multipliers

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        if self.gate_multiplier != 1.0:
            gate = gate * self.gate_multiplier
        inner = gated_product(gate, up, self.activation, clamp=self.clamp, up_offset=self.up_offset)
        down: Tensor = self.down_proj(inner if self.inner_norm is None else self.inner_norm(inner))
        return down if self.output_multiplier == 1.0 else down * self.output_multiplier


class MLP(nn.Module):
    """down(activation(up(x)))."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        bias: bool = False,
        output_bias: bool | None = None,
        inner_norm: nn.Module | None = None,
        learned_activation: bool = False,
    ) -> None:
        """bias: of up; output_bias: of down, None for the same. inner_norm: of what down reads. learned_activation:
        whether the activation may have parameters, "activation.*". ModelError for an unknown one."""
        super().__init__()
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias if output_bias is None else output_bias)
        self.activation = find_activation(activation, learned=learned_activation)
        self.inner_norm = inner_norm

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        inner = self.activation(self.up_proj(hidden))
        return self.down_proj(inner if self.inner_norm is None else self.inner_norm(inner))


def gated_product(
    gate: Tensor, up: Tensor, activation: Activation, *, clamp: float | None = None, up_offset: float = 0.0
) -> Tensor:
    """Return what `GatedMLP` computes between its matrices; element-wise over any shape."""
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    if up_offset:
        up = up + up_offset
    return activation(gate) * up


def gelu_tanh(inputs: Tensor) -> Tensor:
    """Return the GELU by a hyperbolic tangent (arXiv 1606.08415), within 1e-3 of the exact one."""
    return functional.gelu(inputs, approximate="tanh")


def clipped_gelu(inputs: Tensor) -> Tensor:
    """Return the GELU, at most 10."""
    return functional.gelu(inputs).clamp(-10, 10)


def quick_gelu(inputs: Tensor) -> Tensor:
    """Return the GELU by a logistic function: x * sigmoid(1.702 x)."""
    return inputs * torch.sigmoid(1.702 * inputs)


def squared_relu(inputs: Tensor) -> Tensor:
    """Return max(0, x) squared (arXiv 2109.08668)."""
    return functional.relu(inputs).square()


def laplace(inputs: Tensor) -> Tensor:
    """Return the cumulative Laplace-like function of MEGA (arXiv 2209.10655), close to a squared ReLU but bounded."""
    return 0.5 * (1.0 + torch.erf((inputs - 0.707107) / (0.282095 * math.sqrt(2.0))))


def sqrt_softplus(inputs: Tensor) -> Tensor:
    """Return the square root of log(1 + exp(x))."""
    return functional.softplus(inputs).sqrt()


def linear(inputs: Tensor) -> Tensor:
    """Return the inputs."""
    return inputs


ACTIVATIONS: Final[dict[str, Activation]] = {
    "gelu": functional.gelu,
    "gelu_10": clipped_gelu,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_python": functional.gelu,
    "gelu_python_tanh": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "hardswish": functional.hardswish,
    "laplace": laplace,
    "leaky_relu": partial(functional.leaky_relu, negative_slope=0.01),
    "linear": linear,
    "mish": functional.mish,
    "quick_gelu": quick_gelu,
    "relu": functional.relu,
    "relu2": squared_relu,
    "relu6": functional.relu6,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "sqrtsoftplus": sqrt_softplus,
    "swish": functional.silu,
    "tanh": torch.tanh,
}
"""Name in a config to the function. Several names stand for one function: they differ by rounding only."""


class XIELU(nn.Module):
    """Expanded integral of the ELU (arXiv 2411.13010): quadratic above zero, exponential below, both of learned sizes.

    beta, the slope at zero, and eps, which keeps exponents off zero, are stored with the parameters.
    """

    beta: Tensor
    eps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.full((1,), math.log(math.expm1(0.8))))
        self.alpha_n = nn.Parameter(torch.full((1,), math.log(math.expm1(0.3))))
        self.register_buffer("beta", torch.tensor(0.5))
        self.register_buffer("eps", torch.tensor(-1e-6))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return any shape."""
        above = functional.softplus(self.alpha_p)
        below = self.beta + functional.softplus(self.alpha_n)
        curved = torch.where(
            inputs > 0, above * inputs * inputs, (torch.expm1(torch.minimum(inputs, self.eps)) - inputs) * below
        )
        return curved + self.beta * inputs


LEARNED_ACTIVATIONS: Final[dict[str, type[nn.Module]]] = {"prelu": nn.PReLU, "xielu": XIELU}
"""Name in a config to a module with parameters of its own."""
ACTIVATION_NAMES: Final = frozenset(ACTIVATIONS) | frozenset(LEARNED_ACTIVATIONS)


def find_activation(name: str, *, learned: bool = False) -> Activation:
    """Return the activation of that name. learned: whether it may be a module with parameters, which a layer has to
    store. Raises ModelError for an unknown one."""
    if learned and name in LEARNED_ACTIVATIONS:
        return LEARNED_ACTIVATIONS[name]()
    if name not in ACTIVATIONS:
        known = ", ".join([*ACTIVATIONS, *(LEARNED_ACTIVATIONS if learned else ())])
        raise ModelError(f"activation {name!r} is not implemented; implemented are {known}")
    return ACTIVATIONS[name]


class HeadTransform(nn.Module):
    """norm(activation(dense(x))), as in the heads of BERT (arXiv 1810.04805) and of the decoders made after it."""

    def __init__(self, hidden_size: int, *, activation: str, norm: nn.Module, bias: bool = False) -> None:
        """norm: over the hidden size; bias: of the matrix. ModelError for an unknown activation."""
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, bias=bias)
        self.activation = find_activation(activation)
        self.norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden_size] -> [..., hidden_size]."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed
