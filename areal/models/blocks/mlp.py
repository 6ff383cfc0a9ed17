"""Position-wise feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from areal.models.blocks.activations import activation as find_activation

if TYPE_CHECKING:
    from torch import Tensor

    from areal.models.blocks.activations import Activation


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)) (arXiv 2002.05202); SwiGLU with the default activation.

    clamp: gate is limited from above and up on both sides, before anything else. up_offset: added to up. gpt-oss has
    activation="quick_gelu", clamp=7.0, up_offset=1.0.
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
        learned_activation: bool = False,
    ) -> None:
        """bias: of gate and up; output_bias: of down, None for the same. learned_activation: whether the activation may
        have parameters, "activation.*". ModelError for an unknown one."""
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias if output_bias is None else output_bias)
        self.activation = find_activation(activation, learned=learned_activation)
        self.clamp = clamp
        self.up_offset = up_offset

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        return self.down_proj(gated_product(gate, up, self.activation, clamp=self.clamp, up_offset=self.up_offset))


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
        learned_activation: bool = False,
    ) -> None:
        """bias: of up; output_bias: of down, None for the same. learned_activation: whether the activation may have
        parameters, "activation.*". ModelError for an unknown one."""
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias if output_bias is None else output_bias)
        self.activation = find_activation(activation, learned=learned_activation)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        return self.down_proj(self.activation(self.up_proj(hidden)))


def gated_product(
    gate: Tensor, up: Tensor, activation: Activation, *, clamp: float | None = None, up_offset: float = 0.0
) -> Tensor:
    """Return what `GatedMLP` computes between its matrices; element-wise over any shape."""
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    if up_offset:
        up = up + up_offset
    return activation(gate) * up
