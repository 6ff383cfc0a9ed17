"""The real-gated linear recurrent unit as a mixer (arXiv 2402.19427): RecurrentGemma."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import nn
from torch.nn import functional

from areal.api import Diagonal, ModelError
from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import find_activation
from areal.models.blocks.short_convolution import DepthwiseConvolution, with_states

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import BaseModelArgs, StateBackend
    from areal.models.blocks.rotary import Rotation

SHARPNESS: Final = 8.0
"""By what the logarithm of the decay is multiplied, a constant of all implementations."""
_MOST_STEEP: Final = 1000.0
"""Bound of the derivative of the root, which has none where nothing decays."""


class BlockDiagonal(nn.Module):
    """Matrices of which each reads and gives some of the features. Parameters: weight [blocks, width, width], from its
    second dimension to its third, and bias [blocks, width]."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, width, width))
        self.bias = nn.Parameter(torch.empty(blocks, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """[T, blocks * width] -> [T, blocks * width]."""
        parts = inputs.unflatten(-1, self.bias.shape).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], parts, self.weight).transpose(0, 1).flatten(1)


class RGLRU(nn.Module):
    """Takes the place of a block's `self_attn`.

    Inputs x are projected and convolved. Two gates are made of them block by block, i of the input and r of the decay:
    log a = -8 r softplus(decay), h <- a h + sqrt(1 - a^2) i x, for each channel by itself; a document begins with i x
    as it is. What comes out is multiplied by another projection, activated, and projected.

    Parameters: gate_proj, x_proj, conv, input_gate, decay_gate, decay [width], o_proj.
    """

    place: ClassVar[str] = "rglru"
    """What tables of names on disk call it, since attention of other layers is stored elsewhere."""

    def __init__(
        self,
        layer: int,
        args: BaseModelArgs,
        *,
        width: int,
        num_blocks: int,
        kernel_size: int,
        activation: str,
        bias: bool = True,
        output_bias: bool = True,
        conv_bias: bool = True,
        chunk: int = 256,
    ) -> None:
        """Make the mixer, with `width` channels in `num_blocks` blocks of gates.

        activation: of what the output is multiplied with. bias: of gate_proj and x_proj. chunk: see `Diagonal`. Raises
        ModelError for blocks that are not of one size.
        """
        super().__init__()
        if num_blocks < 1 or width % num_blocks:
            raise ModelError(f"{width} channels are not {num_blocks} blocks of one size; expected a divisor of them")
        self.layer, self.num_blocks, self.chunk = layer, num_blocks, chunk
        hidden = args.hidden_size
        self.gate_proj = Linear(hidden, width, bias=bias)
        self.x_proj = Linear(hidden, width, bias=bias)
        self.activation = find_activation(activation)
        self.conv = DepthwiseConvolution(width, kernel_size, bias=conv_bias)
        self.input_gate = BlockDiagonal(num_blocks, width // num_blocks)
        self.decay_gate = BlockDiagonal(num_blocks, width // num_blocks)
        self.decay = nn.Parameter(torch.empty(width))
        self.o_proj = Linear(width, hidden, bias=output_bias)

    def forward(self, hidden: Tensor, rotation: Rotation | None, backend: StateBackend) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]. rotation: not used; states know the order of their inputs."""
        states = with_states(backend, self.layer)
        inputs = self.conv(self.layer, self.x_proj(hidden), states)
        wide = torch.promote_types(inputs.dtype, torch.float32)
        rate = SHARPNESS * functional.softplus(self.decay.to(wide))
        log_decay = -rate * self.decay_gate(inputs).to(wide).sigmoid()
        gated = inputs.to(wide) * self.input_gate(inputs).to(wide).sigmoid()
        scanned = states.scan(
            self.layer,
            Diagonal(
                # A channel is a head of one number, so that states are split as filters are.
                value=(gated * _Root.apply(-torch.expm1(2 * log_decay)))[..., None],
                log_decay=log_decay[..., None],
                first=gated[..., None],
                chunk=self.chunk,
            ),
        )
        gate = self.activation(self.gate_proj(hidden))
        return self.o_proj(scanned.squeeze(-1).to(gate.dtype) * gate)


class _Root(torch.autograd.Function):
    """A square root whose derivative is bounded, as that of the published code: where nothing decays it would be
    infinite."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.sqrt()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        return gradients[0] * (4 * values).clamp_min(_MOST_STEEP**-2).rsqrt()
